//! What is known to happen before what: a vector clock for each queue, for the host, and for each
//! event. It errs on the side of "not known", so that whatever it calls ordered must be.

/// How far each queue has come, as seen from somewhere.
#[derive(Clone, Default, Debug)]
pub struct Clock(Vec<u32>);

impl Clock {
    fn at(&self, queue: usize) -> u32 {
        self.0.get(queue).copied().unwrap_or(0)
    }

    fn set(&mut self, queue: usize, position: u32) {
        if self.0.len() <= queue {
            self.0.resize(queue + 1, 0);
        }
        self.0[queue] = position;
    }

    fn join(&mut self, other: &Clock) {
        for (queue, position) in other.0.iter().enumerate() {
            if *position > self.at(queue) {
                self.set(queue, *position);
            }
        }
    }

    pub fn has(&self, point: Point) -> bool {
        self.at(point.queue) >= point.position
    }
}

/// An operation: its queue and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub queue: usize,
    pub position: u32,
}

/// How a queue is ordered with the others of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

struct Queue {
    device: i32,
    kind: Kind,
    position: u32,
    clock: Clock,
    /// The clock of its last operation: what implicit synchronisation passes on.
    published: Clock,
}

#[derive(Default)]
pub struct Order {
    queues: Vec<Queue>,
    host: Clock,
}

impl Order {
    pub fn add(&mut self, device: i32, kind: Kind) -> usize {
        let (clock, published) = (Clock::default(), Clock::default());
        self.queues.push(Queue { device, kind, position: 0, clock, published });
        self.queues.len() - 1
    }

    pub fn device(&self, queue: usize) -> i32 {
        self.queues[queue].device
    }

    /// What the next operation of a queue comes after.
    pub fn next(&self, queue: usize) -> Clock {
        let Queue { device, kind, ref clock, .. } = self.queues[queue];
        let mut clock = clock.clone();
        clock.join(&self.host);
        let passed_on = match kind {
            Kind::NonBlocking => None,
            Kind::Blocking => Some(Kind::Legacy),
            Kind::Legacy => Some(Kind::Blocking),
        };
        for other in &self.queues {
            if other.device == device && Some(other.kind) == passed_on {
                clock.join(&other.published);
            }
        }
        clock
    }

    fn step(&mut self, queue: usize, mut clock: Clock) -> Point {
        let queued = &mut self.queues[queue];
        queued.position += 1;
        clock.set(queue, queued.position);
        queued.clock = clock;
        Point { queue, position: queued.position }
    }

    /// Queues work.
    pub fn work(&mut self, queue: usize) -> Point {
        let clock = self.next(queue);
        let point = self.step(queue, clock);
        self.queues[queue].published = self.queues[queue].clock.clone();
        point
    }

    /// Queues a mark: where it is, and what it stands for.
    pub fn record(&mut self, queue: usize) -> (Point, Clock) {
        let mut clock = self.queues[queue].clock.clone();
        clock.join(&self.host);
        let point = self.step(queue, clock);
        (point, self.queues[queue].clock.clone())
    }

    /// Queues a wait for what an event stands for.
    pub fn wait(&mut self, queue: usize, event: &Clock) {
        let mut clock = self.queues[queue].clock.clone();
        clock.join(event);
        self.step(queue, clock);
    }

    /// The host knows that an event was reached.
    pub fn host_learns(&mut self, event: &Clock) {
        self.host.join(event);
    }

    /// The host waited for a queue.
    pub fn host_waits(&mut self, queue: usize) {
        let clock = self.queues[queue].clock.clone();
        self.host.join(&clock);
    }

    /// The host waited for a device.
    pub fn host_waits_for_device(&mut self, device: i32) {
        for queue in 0..self.queues.len() {
            if self.queues[queue].device == device {
                self.host_waits(queue);
            }
        }
    }

    pub fn host_knows(&self, point: Point) -> bool {
        self.host.has(point)
    }
}
