//! The dictionary as a pickle of protocol 4, with only the opcodes that PyTorch's viewer supports.
//! Keys, frames, stacks and the texts of events are written once and then referenced.

use super::dictionary::{Notation, Shared, Sink, write};
use super::snapshot::Snapshot;
use crate::base::error::{Error, Result};

/// More than the number of distinct words in a dictionary.
const WORDS: usize = 96;
/// The object is not written yet.
const UNKNOWN: u32 = u32::MAX;

/// Writes a snapshot. After the first byte it allocates no host memory.
pub fn pickle(snapshot: &Snapshot, sink: &mut Sink<'_>) -> Result<()> {
    let table = |count: usize| {
        let mut table = Vec::new();
        table.try_reserve_exact(count + 1).map_err(|_| Error::OutOfHostMemory("a pickle"))?;
        table.resize(count + 1, UNKNOWN);
        Ok::<_, Error>(table)
    };
    let frames = table(snapshot.stacks.frame_count())?;
    let stacks = table(snapshot.stacks.count())?;
    let texts = table(snapshot.stacks.count())?;
    let mut writer = Pickle { sink, next: 0, words: [None; WORDS], frames, stacks, texts };
    // PROTO 4.
    writer.put(&[0x80, 4])?;
    write(snapshot, &mut writer)?;
    writer.put(b".")
}

struct Pickle<'a> {
    sink: &'a mut Sink<'a>,
    /// The memo index of the next object.
    next: u32,
    words: [Option<(&'static str, u32)>; WORDS],
    /// Memo indices by id.
    frames: Vec<u32>,
    stacks: Vec<u32>,
    /// The texts of events, by the ids of their stacks.
    texts: Vec<u32>,
}

impl Pickle<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        (self.sink)(bytes)
    }

    /// MEMOIZE.
    fn memoize(&mut self) -> Result<u32> {
        let number = self.next;
        self.next += 1;
        self.put(&[0x94])?;
        Ok(number)
    }

    /// BINGET or LONG_BINGET.
    fn get(&mut self, number: u32) -> Result<()> {
        match u8::try_from(number) {
            Ok(short) => self.put(&[b'h', short]),
            Err(_) => {
                self.put(b"j")?;
                self.put(&number.to_le_bytes())
            }
        }
    }

    /// SHORT_BINUNICODE or BINUNICODE.
    fn string(&mut self, bytes: &[u8]) -> Result<()> {
        // Invalid UTF-8 is replaced by a character of three bytes.
        let pieces = || bytes.utf8_chunks();
        let replaced = |invalid: &[u8]| if invalid.is_empty() { 0 } else { 3 };
        let len: usize = pieces().map(|p| p.valid().len() + replaced(p.invalid())).sum();
        match u8::try_from(len) {
            Ok(short) => self.put(&[0x8c, short])?,
            Err(_) => {
                self.put(b"X")?;
                self.put(&(len as u32).to_le_bytes())?;
            }
        }
        for piece in pieces() {
            self.put(piece.valid().as_bytes())?;
            if !piece.invalid().is_empty() {
                self.put("\u{fffd}".as_bytes())?;
            }
        }
        Ok(())
    }

    fn place(&mut self, shared: Shared) -> Option<&mut u32> {
        match shared {
            Shared::Frame(id) => self.frames.get_mut(id as usize),
            Shared::Stack(id) => self.stacks.get_mut(id as usize),
        }
    }

    /// Begins a list or dictionary: EMPTY_LIST or EMPTY_DICT, MEMOIZE if it is shared, and MARK.
    fn begin(&mut self, empty: u8, shared: Option<Shared>) -> Result<()> {
        self.put(&[empty])?;
        if let Some(shared) = shared {
            let number = self.memoize()?;
            if let Some(place) = self.place(shared) {
                *place = number;
            }
        }
        self.put(b"(")
    }
}

impl Notation for Pickle<'_> {
    fn integer(&mut self, value: i64) -> Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.put(&[b'K', byte]);
        }
        if let Ok(word) = u16::try_from(value) {
            self.put(b"M")?;
            return self.put(&word.to_le_bytes());
        }
        if let Ok(int) = i32::try_from(value) {
            self.put(b"J")?;
            return self.put(&int.to_le_bytes());
        }
        // LONG1 of 8 bytes, the longest that the viewer supports.
        self.put(&[0x8a, 8])?;
        self.put(&value.to_le_bytes())
    }

    fn float(&mut self, value: f64) -> Result<()> {
        self.put(b"G")?;
        self.put(&value.to_be_bytes())
    }

    fn flag(&mut self, value: bool) -> Result<()> {
        self.put(&[if value { 0x88 } else { 0x89 }])
    }

    fn text(&mut self, value: &[u8]) -> Result<()> {
        self.string(value)
    }

    fn metadata(&mut self, id: u32, value: &[u8]) -> Result<()> {
        match self.texts.get(id as usize) {
            Some(&number) if number != UNKNOWN => self.get(number),
            _ => {
                self.string(value)?;
                let number = self.memoize()?;
                if let Some(place) = self.texts.get_mut(id as usize) {
                    *place = number;
                }
                Ok(())
            }
        }
    }

    fn word(&mut self, value: &'static str) -> Result<()> {
        let is_it = |known: &str| std::ptr::eq(known, value) || known == value;
        for place in 0..WORDS {
            match self.words[place] {
                Some((known, number)) if is_it(known) => return self.get(number),
                Some(_) => (),
                None => {
                    self.string(value.as_bytes())?;
                    let number = self.memoize()?;
                    self.words[place] = Some((value, number));
                    return Ok(());
                }
            }
        }
        self.string(value.as_bytes())
    }

    fn key(&mut self, key: &'static str) -> Result<()> {
        self.word(key)
    }

    fn pair(&mut self, first: i64, second: i64) -> Result<()> {
        self.integer(first)?;
        self.integer(second)?;
        // TUPLE2.
        self.put(&[0x86])
    }

    fn begin_list(&mut self, shared: Option<Shared>) -> Result<()> {
        self.begin(b']', shared)
    }

    fn end_list(&mut self) -> Result<()> {
        // APPENDS.
        self.put(b"e")
    }

    fn begin_dictionary(&mut self, shared: Option<Shared>) -> Result<()> {
        self.begin(b'}', shared)
    }

    fn end_dictionary(&mut self) -> Result<()> {
        // SETITEMS.
        self.put(b"u")
    }

    fn again(&mut self, shared: Shared) -> Result<bool> {
        match self.place(shared).map(|place| *place) {
            None | Some(UNKNOWN) => Ok(false),
            Some(number) => self.get(number).map(|()| true),
        }
    }
}
