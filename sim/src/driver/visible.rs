//! CUDA_VISIBLE_DEVICES: the devices that a process sees, and their order. Read as driver 580.159
//! reads it.

use crate::base::code;

/// The identification of a device.
pub(super) type Uuid = [u8; 16];

/// The environment variable.
pub(super) const NAME: &str = "CUDA_VISIBLE_DEVICES";

/// The devices of a machine with these UUIDs that a list makes visible: all without a list, else
/// those before the first entry that names none. NO_DEVICE if that is none, INVALID_DEVICE if it
/// is one twice.
///
/// The first entry decides whether the list is one of numbers or of UUIDs.
pub(super) fn devices(list: Option<&str>, uuids: &[Uuid]) -> Result<Vec<usize>, i32> {
    let Some(list) = list else { return Ok((0..uuids.len()).collect()) };
    let find = if list.starts_with(PREFIX) { by_uuid } else { by_number };
    let mut visible = Vec::new();
    for device in list.split(',').map_while(|entry| find(entry, uuids)) {
        if visible.contains(&device) {
            return Err(code::INVALID_DEVICE);
        }
        visible.push(device);
    }
    if visible.is_empty() { Err(code::NO_DEVICE) } else { Ok(visible) }
}

/// The device with a decimal number. As C's atoi reads it: blanks before it and anything after it
/// are ignored, and only 32 bits of it are kept.
fn by_number(entry: &str, uuids: &[Uuid]) -> Option<usize> {
    let entry = entry.trim_ascii_start();
    let (is_negative, digits) = match entry.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, entry.strip_prefix('+').unwrap_or(entry)),
    };
    let digits = &digits[..digits.bytes().take_while(u8::is_ascii_digit).count()];
    let most = i64::MAX as u64 + u64::from(is_negative);
    let value = match digits.is_empty() {
        true => return None,
        // A number of too many digits is the largest there is.
        false => digits.parse().unwrap_or(most).min(most),
    };
    let value = if is_negative { value.wrapping_neg() } else { value };
    usize::try_from(value as i32).ok().filter(|device| *device < uuids.len())
}

const PREFIX: &str = "GPU-";

/// The only device whose UUID begins with an entry, or is at its beginning.
fn by_uuid(entry: &str, uuids: &[Uuid]) -> Option<usize> {
    let named = entry.strip_prefix(PREFIX)?.as_bytes();
    let is_named = |uuid: &Uuid| {
        let text = text(uuid);
        let bytes = named.len().min(text.len());
        text.as_bytes()[..bytes].eq_ignore_ascii_case(&named[..bytes])
    };
    let mut found = uuids.iter().enumerate().filter(|(_, uuid)| is_named(uuid));
    let (device, _) = found.next()?;
    found.next().is_none().then_some(device)
}

/// A UUID in its usual form, without "GPU-".
fn text(uuid: &Uuid) -> String {
    let mut text = String::new();
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.extend(
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[digit as usize])),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Uuid = [
        0xbe, 0xaf, 0x45, 0x37, 0x52, 0x8d, 2, 0x59, 0x7e, 0xf9, 0x50, 0x9d, 0xc0, 0xcc, 0xa3, 0x55,
    ];
    const SECOND: Uuid = [
        0xc0, 0x90, 0x99, 0xa0, 0x51, 0x99, 0xaa, 0x30, 0x76, 0x15, 0x8c, 0x33, 0xe7, 0xde, 0x55,
        0xce,
    ];
    const A: &str = "GPU-beaf4537-528d-0259-7ef9-509dc0cca355";
    const B: &str = "GPU-c09099a0-5199-aa30-7615-8c33e7de55ce";

    fn seen(list: &str) -> Result<Vec<usize>, i32> {
        devices(Some(list), &[FIRST, SECOND])
    }

    // What driver 580.159 answers on a machine with two GPUs of these UUIDs.
    #[test]
    fn lists_are_read_as_by_the_driver() {
        assert_eq!(devices(None, &[FIRST, SECOND]), Ok(vec![0, 1]));
        for none in ["", " ", "-1", "-1,0", "2", "abc", ",0", "none", "all", "NoDevFiles", "-2"] {
            assert_eq!(seen(none), Err(code::NO_DEVICE), "{none}");
        }
        for first in ["0", "0,-1", "0,2", "0,2,1", " 0", "0 ", "\t0", "0\n", "0,abc,1", "00"] {
            assert_eq!(seen(first), Ok(vec![0]), "{first}");
        }
        for first in ["0x1", "0;1", "0,", "0,,1", "4294967296", "-0"] {
            assert_eq!(seen(first), Ok(vec![0]), "{first}");
        }
        for second in ["1", "01", "+1", "1a", "1 0", "1.0"] {
            assert_eq!(seen(second), Ok(vec![1]), "{second}");
        }
        assert_eq!(seen("1,0"), Ok(vec![1, 0]));
        assert_eq!(seen(" 1 , 0"), Ok(vec![1, 0]));
        assert_eq!(seen("0, 1"), Ok(vec![0, 1]));
        for far in ["2147483648", "99999999999"] {
            assert_eq!(seen(far), Err(code::NO_DEVICE), "{far}");
        }
        for twice in ["0,0", "1,1", "1,0,1"] {
            assert_eq!(seen(twice), Err(code::INVALID_DEVICE), "{twice}");
        }
    }

    #[test]
    fn uuids_are_read_as_by_the_driver() {
        for first in [A, &A[..12], &A[..9], &A[..8], &A[..5]] {
            assert_eq!(seen(first), Ok(vec![0]), "{first}");
        }
        assert_eq!(seen(&format!("{B},{A}")), Ok(vec![1, 0]));
        assert_eq!(seen(&format!("{A},{A}")), Err(code::INVALID_DEVICE));
        assert_eq!(seen(&format!("{A},1")), Ok(vec![0]));
        assert_eq!(seen(&format!("{A}, {B}")), Ok(vec![0]));
        assert_eq!(seen(&format!("{A},GPU-0000")), Ok(vec![0]));
        assert_eq!(seen(&format!("{A}0")), Ok(vec![0]));
        assert_eq!(seen(&format!("{A} ")), Ok(vec![0]));
        assert_eq!(seen("GPU-BEAF4537-528D-0259-7EF9-509DC0CCA355"), Ok(vec![0]));
        assert_eq!(seen(&format!("0,{B}")), Ok(vec![0]));
        for none in ["GPU-", "GPU-beaf4537-5ffff", "GPU-00000000-0000", &A[4..]] {
            assert_eq!(seen(none), Err(code::NO_DEVICE), "{none}");
        }
        assert_eq!(seen(&A.to_lowercase()), Err(code::NO_DEVICE));
        assert_eq!(seen(&format!(" {A}")), Err(code::NO_DEVICE));
        assert_eq!(seen(&format!("MIG-{A}/0/0")), Err(code::NO_DEVICE));
    }
}
