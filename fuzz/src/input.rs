//! The bytes of an input as a source of decisions: when they are used up, everything is 0.

/// What is left of an input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of an input.
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input(data)
    }

    /// Is it used up?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// `count` bytes from `start` on, where there are so many.
    pub fn skipping(mut self, start: usize, count: usize) -> Input<'a> {
        self.take(start);
        Input(self.take(count))
    }

    /// At most `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        self.number(1) as u8
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        self.number(2) as u16
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        self.number(8)
    }

    /// A number below `limit`, from one byte; 0 if there is none below it.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.u8()).checked_rem(limit).unwrap_or(0)
    }

    /// One of some values.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// True for the highest `parts` of 256 values of a byte.
    pub fn rarely(&mut self, parts: u8) -> bool {
        self.u8() > u8::MAX - parts
    }
}
