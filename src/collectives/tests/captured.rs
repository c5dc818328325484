//! Calls that write to outputs of the caller: directly, or in a capture that is replayed with new
//! inputs.

use super::api::{self, Outcome};
use super::buffer::Place;
use super::reference::Array;
use super::run::World;

/// Number of launches of a graph.
const REPLAYS: usize = 3;

impl World<'_> {
    /// Makes a call whose outputs must be `expected` of the sources.
    pub fn into(
        &mut self,
        mut parts: Vec<Array>,
        call: &dyn Fn() -> Outcome<()>,
        expected: &dyn Fn(&[Array]) -> Vec<Array>,
    ) -> Outcome<()> {
        if self.case.captured {
            // First-use work, such as enabling peer access, is impossible in a capture and is done
            // before.
            let members = self.members();
            for (device, peer) in members.iter().flat_map(|a| members.iter().map(move |b| (*a, *b)))
            {
                if device != peer {
                    api::enable_peer(device, peer)?;
                }
            }
            self.prepare()?;
            call()?;
            self.capture(call)?;
            for _ in 0..REPLAYS {
                parts = self.write_sources_anew()?;
                self.replay()?;
            }
        } else {
            self.call(|_| call())?;
        }
        let mut outs = expected(&parts).into_iter().enumerate();
        outs.try_for_each(|(index, out)| self.expect_out(index, out))
    }

    /// The devices that take part. The capture begins on the first.
    fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        for place in self.case.list.iter().chain([&self.case.root]) {
            if let Place::Device(device) = place
                && !members.contains(device)
            {
                members.push(*device);
            }
        }
        members
    }

    fn capture(&mut self, call: &dyn Fn() -> Outcome<()>) -> Outcome<()> {
        let members = self.members();
        let first = self.current(members[0]);
        let graph = api::graph()?;
        self.graph = Some(graph);
        api::capture_begin(graph, first)?;
        let captured = self.call(|_| call());
        let joined = captured.and_then(|()| {
            members[1..]
                .iter()
                .try_for_each(|device| api::wait_stream(first, self.current(*device)))
        });
        if joined.is_err() {
            let _ = api::capture_abort(graph);
            return joined;
        }
        api::capture_end(graph)
    }

    /// Launches the graph after the present work of all devices, which then wait for it.
    fn replay(&mut self) -> Outcome<()> {
        let Some(graph) = self.graph else { return Ok(()) };
        let members = self.members();
        let stream = self.stream(members[0])?;
        for device in &members {
            api::wait_stream(stream, self.current(*device))?;
        }
        api::replay(graph, stream)?;
        members.iter().try_for_each(|device| api::wait_stream(self.current(*device), stream))
    }
}
