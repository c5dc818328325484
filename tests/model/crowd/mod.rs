//! Many threads at once, which hand blocks to each other: what one allocated another uses, a third
//! one frees, on streams that they share or that are their own. In between, the threads meet, and
//! what the library shows is compared with what they did; in the midst of it, every snapshot is one
//! that could be.

mod books;
mod hand;
mod plan;

use super::api;
use super::books::round_size;
use super::ops::{MIB, SMALL_ARENA};
use super::view::{Shown, View};
use books::{Amount, Books, Tally};
use hand::{Hand, Square};
use plan::{Choice, Plan, Round};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use tcuda::ffi::snapshot::{TCUDA_BLOCK_ACTIVE_ALLOCATED, TCUDA_BLOCK_ACTIVE_PENDING_FREE};

/// Figures of all plans.
#[derive(Default, Debug)]
pub struct Figures {
    pub plans: u64,
    pub rounds: u64,
    pub operations: u64,
    pub handed_over: u64,
    pub ooms: u64,
    pub faults: u64,
    pub exact_peaks: u64,
}

struct Crowd {
    square: Square,
    hands: Vec<Hand>,
    books: Vec<Books>,
    /// Native handle and id of each stream.
    names: Vec<Vec<(usize, i64)>>,
    /// A failure may have kept the driver from taking memory back.
    has_lost: bool,
}

impl Crowd {
    fn new(plan: Plan) -> Crowd {
        api::select(&plan.machine.options()).unwrap();
        plan.machine.configure();
        let devices = plan.machine.devices as usize;
        let streams: Vec<Vec<_>> = (0..devices as i32)
            .map(|device| {
                let own = (0..plan.shared + plan.threads)
                    .map(|index| api::stream_create(device, -(index as i32 % 2)).unwrap());
                std::iter::once(api::stream_default(device)).chain(own).collect()
            })
            .collect();
        let name = |handle: &usize| (api::stream_native(*handle), api::stream_id(*handle));
        let names = streams.iter().map(|list| list.iter().map(name).collect()).collect();
        let hands = (0..plan.threads)
            .map(|number| Hand {
                number,
                items: Vec::new(),
                choice: Choice::new(plan.seed.wrapping_mul(64).wrapping_add(number as u64)),
                tallies: vec![Tally::default(); devices],
                log: Vec::new(),
            })
            .collect();
        let square = Square {
            mail: (0..plan.threads).map(|_| Mutex::default()).collect(),
            plan,
            streams,
            owned: Mutex::default(),
            left_waiting: Mutex::default(),
            operations: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
        };
        Crowd { square, hands, books: vec![Books::default(); devices], names, has_lost: false }
    }

    /// All threads at once; the first one that panicked says why.
    fn run(&mut self, round: &Round, figures: &mut Figures) {
        let before = api::fault_count();
        api::faults(&round.faults);
        self.has_lost |= round.faults.contains('*') || round.faults.contains("cuMemUnmap");
        let start = Barrier::new(self.hands.len());
        let is_well = std::thread::scope(|scope| {
            let square = &self.square;
            let threads: Vec<_> = self
                .hands
                .iter_mut()
                .map(|hand| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        hand.run(square, round);
                    })
                })
                .collect();
            // Each is waited for, whatever became of the others.
            let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            ends.iter().all(Result::is_ok)
        });
        api::faults("");
        figures.faults += api::fault_count() - before;
        assert!(is_well, "a thread failed");
        if !round.faults.is_empty() {
            (0..self.square.streams.len())
                .for_each(|device| api::device_synchronize(device as i32).unwrap());
        }
        self.compare(round, figures);
        for (device, books) in self.books.iter_mut().enumerate() {
            if round.resets_peak {
                api::reset_peak(device as i32);
                books.reset_peak();
            }
            if round.resets_totals {
                api::reset_accumulated(device as i32);
                books.reset_totals();
            }
        }
        figures.rounds += 1;
    }

    /// What the library shows is what the threads did.
    fn compare(&mut self, round: &Round, figures: &mut Figures) {
        let view = View::take();
        let waiting = self.compare_blocks(&view);
        for (device, books) in self.books.iter_mut().enumerate() {
            let stats = api::statistics(device as i32);
            let tallies: Vec<&Tally> =
                self.hands.iter().map(|hand| &hand.tallies[device]).collect();
            figures.ooms += tallies.iter().map(|tally| tally.ooms).sum::<u64>();
            let is_known = round.faults.is_empty();
            figures.exact_peaks +=
                books.compare(device, &tallies, &waiting[device], is_known, &stats);
            view.compare(device as i32, &stats, true, self.has_lost);
        }
        for hand in &mut self.hands {
            hand.tallies.fill(Tally::default());
        }
    }

    /// Every block is owned, or was freed for another stream; gives those that wait, by device
    /// and row.
    fn compare_blocks(&mut self, view: &View) -> Vec<[Amount; 3]> {
        let mut waiting = vec![[[0; 3]; 3]; self.books.len()];
        let owned = self.square.owned.lock().unwrap();
        let mut live = owned.iter();
        let mut still_waiting: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let left_waiting = &mut *self.square.left_waiting.lock().unwrap();
        for (address, shown) in &view.blocks {
            if shown.state == TCUDA_BLOCK_ACTIVE_ALLOCATED {
                let (wanted, (requested, device, stream)) =
                    live.next().expect("a block that is nobody's");
                assert_eq!(address, wanted, "the next live block");
                let (native, stream_id) = match self.square.plan.machine.shares {
                    // Its segment is of another stream.
                    true => (shown.native, shown.stream_id),
                    false => self.names[*device][*stream],
                };
                let bytes = round_size(*requested);
                let wanted = Shown {
                    bytes,
                    requested: *requested,
                    state: TCUDA_BLOCK_ACTIVE_ALLOCATED,
                    device: *device as i32,
                    native,
                    stream_id,
                    is_small: bytes <= SMALL_ARENA,
                };
                assert_eq!(*shown, wanted, "the block at {address:#x}");
            } else if shown.state == TCUDA_BLOCK_ACTIVE_PENDING_FREE {
                let known = left_waiting.get(address).is_some_and(|known| {
                    known.contains(&shown.requested) && shown.bytes == round_size(shown.requested)
                });
                assert!(known, "the block at {address:#x} has no reason to wait: {shown:?}");
                still_waiting.entry(*address).or_default().push(shown.requested);
                let rows = &mut waiting[shown.device as usize];
                for row in [0, if shown.bytes <= MIB { 1 } else { 2 }] {
                    let amount = [1, shown.bytes as i64, shown.requested as i64];
                    rows[row].iter_mut().zip(amount).for_each(|(sum, amount)| *sum += amount);
                }
            }
        }
        assert!(live.next().is_none(), "a live block is not shown");
        *left_waiting = still_waiting;
        waiting
    }

    /// Frees everything and stops.
    fn end(&mut self, figures: &mut Figures) {
        let round = Round {
            flavour: plan::Flavour::Free,
            steps: 0,
            faults: String::new(),
            resets_peak: false,
            resets_totals: false,
        };
        for number in 0..self.hands.len() {
            let mail = std::mem::take(&mut *self.square.mail[number].lock().unwrap());
            let hand = &mut self.hands[number];
            let items: Vec<_> = hand.items.drain(..).chain(mail).collect();
            items.into_iter().for_each(|item| hand.let_go(&self.square, &round, item));
        }
        self.compare(&round, figures);
        api::empty_cache().unwrap();
        self.compare(&round, figures);
        assert!(View::take().segments.is_empty(), "memory is left in the cache");
        for stream in self.square.streams.iter().flat_map(|list| &list[1..]) {
            api::stream_destroy(*stream).unwrap();
        }
        assert_eq!(api::shutdown(), 0, "live handles");
    }
}

/// Runs a plan; the error is what was wrong, after the last of what was done.
pub fn run(seed: u64, schedule: &str, figures: &mut Figures) -> Result<(), String> {
    let plan = Plan::new(seed, schedule);
    let text = format!("{plan:?}");
    let mut log = Vec::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut crowd = Crowd::new(plan);
        let rounds = crowd.square.plan.rounds.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            rounds.iter().for_each(|round| crowd.run(round, figures));
            crowd.end(figures);
        }));
        figures.plans += 1;
        figures.operations += crowd.square.operations.load(Ordering::Relaxed);
        figures.handed_over += crowd.square.handed_over.load(Ordering::Relaxed);
        for hand in &crowd.hands {
            let first = hand.log.len().saturating_sub(40);
            log.extend_from_slice(&hand.log[first..]);
        }
        if outcome.is_err() {
            api::faults("");
            api::shutdown();
        }
        outcome
    }));
    match outcome {
        Ok(Ok(())) => Ok(()),
        _ => Err(format!("{text}\n{}", log.join("\n"))),
    }
}
