//! The search for races in a launch.

use super::Grid;
use crate::memory::Machine;
use crate::memory::race::{Detector, Launch, Named, Settings, Site, Space, Summary};
use crate::ptx::tree;

impl Grid<'_> {
    /// Begins to look for races.
    pub(super) fn look_for_races(&mut self, settings: Settings) {
        let (program, shape) = (self.program, &self.shape);
        let sites = program.functions.iter().map(|function| {
            let site = |it: &crate::program::Instruction| Site {
                line: it.line,
                source: it.source,
                order: it.order,
            };
            function.code.iter().map(site).collect()
        });
        let variables = program.variables.iter().enumerate().filter_map(|(index, variable)| {
            let (space, start) = match variable.space {
                tree::Space::Shared => {
                    let start = self.symbols.shared.get(&(index as u32))?;
                    (Space::Shared, *start as u64)
                }
                _ => (Space::Global, *self.symbols.addresses.get(index)?),
            };
            let (name, bytes) = (variable.name.clone(), variable.bytes as u64);
            Some(Named { name, space, start, bytes })
        });
        let launch = Launch {
            kernel: program.functions[self.kernel as usize].name.clone(),
            sites: sites.collect(),
            files: program.files.clone(),
            variables: variables.collect(),
            grid: shape.grid,
            block: shape.block,
            cluster: shape.cluster.map(|count| count.max(1)),
            shared_bytes: self.shared_bytes as u64,
        };
        let kernel = launch.kernel.clone();
        match Detector::new(launch, settings) {
            Some(detector) => self.races = Some(Box::new(detector)),
            None => {
                report(self.machine, &Summary { kernel, is_incomplete: true, ..Summary::default() })
            }
        }
    }
}

/// Reports what was found, if there is something to report.
pub(super) fn report(machine: &dyn Machine, summary: &Summary) {
    if summary.races > 0 || summary.same_value > 0 || summary.is_incomplete {
        machine.report_races(summary);
    }
}
