//! Tests of single rules.

use super::super::domain::{Kind, StreamInfo};
use super::super::state::{Named, State};
use super::super::text::Label;
use super::super::{Bytes, Mode, Touch};

const BASE: u64 = 1 << 20;

fn stream(key: u64) -> StreamInfo {
    StreamInfo { key, id: key as i64, device: 0, kind: Kind::NonBlocking }
}

fn named() -> Named {
    Named { label: Label::Library("test"), frames: 0 }
}

fn state() -> State {
    let mut state = State::new();
    state.is_on = true;
    state
}

impl State {
    fn rows(&mut self, key: u64, ptr: u64, (bytes, rows, pitch): (u64, u64, u64), mode: Mode) {
        let touch = Touch { bytes: Bytes::Rows { ptr, bytes, rows, pitch }, mode };
        self.operation(0, stream(key), named(), &[touch]).unwrap();
        self.check();
    }

    fn plain(&mut self, key: u64, ptr: u64, bytes: u64, mode: Mode) {
        self.rows(key, ptr, (bytes, 1, 0), mode);
    }

    fn wait_for(&mut self, key: u64) {
        if let Some(stamp) = self.point_of_stream(stream(key)).unwrap() {
            self.reached(&stamp).unwrap();
        }
    }
}

#[test]
fn columns_race_only_where_they_meet() {
    let mut state = state();
    // 1024 rows of 64 bytes: too many to record one by one.
    state.rows(1, BASE, (16, 1024, 64), Mode::Write);
    state.rows(2, BASE + 16, (48, 1024, 64), Mode::Write);
    assert_eq!((state.reports.count, state.unchecked), (0, 0));
    state.rows(2, BASE + 8, (4, 512, 128), Mode::Read);
    assert_eq!(state.reports.count, 1);
    let report = state.reports.get(0).unwrap();
    assert_eq!((report.start, report.bytes), (BASE + 8, 4));
    // A third stream writes all of it, ordered after neither.
    state.plain(3, BASE, 64 * 1024, Mode::Write);
    assert_eq!(state.reports.count, 4, "both columns, and the read");
    state.plain(3, BASE, 64 * 1024, Mode::Write);
    assert_eq!(state.reports.count, 4);
}

#[test]
fn what_is_repeated_takes_no_more_room() {
    let mut state = state();
    let mut most = 0;
    for round in 0..200 {
        for part in 0..10 {
            let ptr = BASE + part * 4096;
            state.plain(1, ptr, 4096, Mode::Write);
            state.rows(1, ptr, (4, 500, 8), Mode::ReadWrite);
            state.rows(1, ptr, (4, 20, 8), Mode::Read);
            state.rows(1, ptr + 4, (4, 500, 8), Mode::Read);
        }
        if round == 1 {
            most = state.room();
        }
        assert!(round < 2 || state.room() <= most, "{} after {most}", state.room());
    }
    assert_eq!((state.reports.count, state.unchecked), (0, 0));
}

#[test]
fn what_is_over_is_forgotten() {
    let mut state = state();
    for block in 0..20_000 {
        state.operation(0, stream(1), named(), &[Touch::write(BASE + block * 64, 32)]).unwrap();
        if block % 100 == 0 {
            state.wait_for(1);
        }
    }
    state.check();
    assert!(state.room() < 10_000, "{}", state.room());
    assert_eq!(state.reports.count, 0);
}

#[test]
fn a_read_of_reused_memory_races_only_with_writes() {
    let mut state = state();
    let range = (BASE, 64);
    for (again, expected) in [(Mode::Read, 0), (Mode::Write, 1)] {
        state.allocated(0, range, Some(stream(1)), 0).unwrap();
        state.plain(1, BASE, 64, Mode::Read);
        state.freed(BASE).unwrap();
        state.allocated(0, range, Some(stream(1)), 0).unwrap();
        state.plain(2, BASE, 64, again);
        assert_eq!(state.reports.count, expected);
        state.wait_for(1);
        state.wait_for(2);
        state.freed(BASE).unwrap();
    }
}

#[test]
fn memory_whose_uses_are_complete_suits_any_stream() {
    let mut state = state();
    state.allocated(0, (BASE, 64), Some(stream(1)), 0).unwrap();
    state.plain(1, BASE, 64, Mode::Write);
    state.freed(BASE).unwrap();
    state.wait_for(1);
    state.allocated(0, (BASE, 64), Some(stream(2)), 0).unwrap();
    state.plain(3, BASE, 64, Mode::Write);
    assert_eq!(state.reports.count, 0);
    // A block whose allocation was not recorded is unknown.
    state.plain(1, BASE + 64, 64, Mode::Write);
    state.freed(BASE + 64).unwrap();
    state.allocated(0, (BASE + 64, 64), Some(stream(2)), 0).unwrap();
    state.plain(2, BASE + 64, 64, Mode::Write);
    assert_eq!(state.reports.count, 0);
}

#[test]
fn pinned_memory_waits_for_recorded_streams() {
    let mut state = state();
    for (is_recorded, expected) in [(true, 0), (false, 1)] {
        state.allocated(0, (BASE, 64), None, 0).unwrap();
        state.plain(1, BASE, 64, Mode::Read);
        if is_recorded {
            state.used_on(BASE + 3, 1).unwrap();
        }
        state.freed(BASE).unwrap();
        state.allocated(0, (BASE, 64), None, 0).unwrap();
        state.plain(2, BASE, 64, Mode::Write);
        assert_eq!(state.reports.count, expected);
        state.freed(BASE).unwrap();
        state.wait_for(2);
    }
}

#[test]
fn branches_of_a_capture_race_when_they_are_captured() {
    let mut state = state();
    let write = [Touch::write(BASE, 64)];
    // Uncaptured work is a separate ordering domain.
    state.operation(0, stream(1), named(), &write).unwrap();
    state.operation(5, stream(1), named(), &write).unwrap();
    state.stream_waits(5, stream(2), stream(1)).unwrap();
    state.operation(5, stream(2), named(), &write).unwrap();
    assert_eq!(state.reports.count, 0);
    state.operation(5, stream(1), named(), &[Touch::read(BASE, 8)]).unwrap();
    assert_eq!(state.reports.count, 1);
    let recorded = state.capture_ended(5).unwrap().unwrap();
    assert!(state.capture_ended(5).unwrap().is_none());
    state.check();
    // A launch is one operation, ordered after the previous launch of the same executable.
    state.launched(0, stream(1), 77, 0, Some(&recorded)).unwrap();
    state.launched(0, stream(2), 77, 0, Some(&recorded)).unwrap();
    assert_eq!(state.reports.count, 1);
    state.launched(0, stream(3), 78, 0, Some(&recorded)).unwrap();
    assert_eq!(state.reports.count, 2);
    let label = state.reports.text(1, &state.texts).unwrap().unwrap().0;
    assert!(label.contains("tcuda_graph_replay: test"), "{label}");
}

#[test]
fn memory_of_graphs_is_reused_by_other_graphs() {
    let mut state = state();
    let write = [Touch::write(BASE, 64)];
    let mut recorded = Vec::new();
    for capture in [5, 6] {
        state.allocated(capture, (BASE, 64), Some(stream(1)), 0).unwrap();
        state.operation(capture, stream(1), named(), &write).unwrap();
        state.freed(BASE).unwrap();
        recorded.push(state.capture_ended(capture).unwrap().unwrap());
        // The first graph is launched before the second gets its memory: the allocator waits for
        // it.
        let launched = recorded.last().unwrap();
        state.launched(0, stream(capture), capture, 0, Some(launched)).unwrap();
    }
    assert_eq!(state.reports.count, 0);
    // The host must order later launches itself.
    state.launched(0, stream(5), 5, 0, Some(&recorded[0])).unwrap();
    assert_eq!(state.reports.count, 1);
}

#[test]
fn what_was_forgotten_raises_nothing() {
    let mut state = state();
    state.plain(1, BASE, 64, Mode::Write);
    state.start_anew();
    state.plain(2, BASE, 64, Mode::Write);
    assert_eq!(state.reports.count, 0);
    state.plain(1, BASE, 64, Mode::Write);
    assert_eq!(state.reports.count, 1);
}

#[test]
fn what_has_no_address_or_too_many_is_left_out() {
    let mut state = state();
    for (ptr, bytes) in [(0, 64), (BASE, 0), (u64::MAX, 8), (BASE, u64::MAX)] {
        state.plain(1, ptr, bytes, Mode::Write);
        state.plain(2, ptr, bytes, Mode::Write);
    }
    state.rows(1, BASE, (8, u64::MAX, u64::MAX), Mode::Write);
    assert_eq!((state.reports.count, state.unchecked), (0, 5));
}

#[test]
fn blocks_that_are_gone_are_not_found_and_take_little_room() {
    let mut state = state();
    let block = |index: u64| (BASE + index * 1024, 512);
    for index in 0..5_000 {
        state.allocated(0, block(index), Some(stream(1)), 0).unwrap();
    }
    for index in (0..5_000).rev() {
        assert_eq!(state.rest_of_block(block(index).0 + 12), 500);
        state.freed(block(index).0).unwrap();
        assert_eq!(state.rest_of_block(block(index).0 + 12), 0);
        state.used_on(block(index).0, 2).unwrap();
        if index % 100 == 0 {
            state.check();
        }
    }
    // A block in place of many, parts of one, and one whose free is not recorded.
    state.allocated(0, (BASE, 64 * 1024), Some(stream(1)), 0).unwrap();
    state.freed(BASE).unwrap();
    state.freed(BASE).unwrap();
    state.allocated(0, (BASE + 256, 256), Some(stream(2)), 0).unwrap();
    assert_eq!((state.rest_of_block(BASE), state.rest_of_block(BASE + 256)), (0, 256));
    state.allocated(0, (BASE, 4096), Some(stream(3)), 0).unwrap();
    state.freed(BASE + 256).unwrap();
    assert_eq!(state.rest_of_block(BASE + 256), 4096 - 256);
    state.check();
}

#[test]
fn a_row_like_the_one_before_it_may_race_where_that_does_not() {
    let mut state = state();
    // 4 bytes of each KiB: too many rows to record one by one.
    state.rows(1, BASE, (4, 300, 1024), Mode::Write);
    // All rows have the same cell, but only the last one overlaps the bytes.
    for (start, bytes) in [(124, 100), (324, 300), (724, 300), (1124, 100)] {
        state.plain(2, BASE + start, bytes, Mode::Read);
    }
    assert_eq!(state.reports.count, 0);
    state.rows(2, BASE + 224, (100, 3, 400), Mode::Write);
    assert_eq!(state.reports.count, 1);
    let report = state.reports.get(0).unwrap();
    assert_eq!((report.start, report.bytes), (BASE + 1024, 4));
}

#[test]
fn memory_of_a_legacy_stream_that_did_nothing_waits_for_the_blocking_ones() {
    let mut state = state();
    let of = |key, kind| StreamInfo { kind, ..stream(key) };
    let (legacy, blocking) = (of(1, Kind::Legacy), of(2, Kind::Blocking));
    state.allocated(0, (BASE, 64), Some(legacy), 0).unwrap();
    state.operation(0, blocking, named(), &[Touch::write(BASE, 64)]).unwrap();
    state.freed(BASE).unwrap();
    state.allocated(0, (BASE, 64), Some(legacy), 0).unwrap();
    state.plain(3, BASE, 64, Mode::Write);
    assert_eq!(state.reports.count, 1);
    let text = state.reports.text(0, &state.texts).unwrap().unwrap().0;
    assert!(!text.contains("tcuda_record_stream"), "{text}");
}

#[test]
fn streams_that_come_and_go_take_no_room() {
    let mut state = state();
    for key in 1..=1000 {
        state.plain(key, BASE, 64, Mode::Write);
        state.wait_for(key);
    }
    assert_eq!(state.reports.count, 0);
    assert!(state.main.stream_count() <= 65, "{}", state.main.stream_count());
    // The host has not waited for this stream, so its slot is not recycled.
    state.plain(2001, BASE, 64, Mode::Write);
    for key in 3001..=3200 {
        state.plain(key, BASE + 4096, 64, Mode::Read);
        state.wait_for(key);
    }
    assert_eq!(state.reports.count, 0);
    state.plain(1, BASE, 4, Mode::Read);
    assert_eq!(state.reports.count, 1, "one that comes back comes after nothing new");
    state.wait_for(2001);
    state.plain(2, BASE + 32, 4, Mode::Read);
    assert_eq!(state.reports.count, 1);
}
