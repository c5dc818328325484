//! The control flow of a function: where the lanes that a branch separates meet again.

/// No instruction: the lanes meet only where the function ends.
pub const NEVER: u32 = u32::MAX;

/// The instructions that can follow one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next one.
    Following,
    /// Only the next one or a target.
    Conditional(Vec<u32>),
    /// Only one of the targets.
    Jump(Vec<u32>),
    /// None: the function or the thread ends.
    End,
}

/// For each instruction that has several successors, its immediate post-dominator: the first one
/// through which all paths lead. [`NEVER`] for the others, and where there is none.
pub fn meeting_points(code: &[Next]) -> Vec<u32> {
    let blocks = Blocks::new(code);
    let dominators = blocks.post_dominators();
    let mut points = vec![NEVER; code.len()];
    for (block, end) in blocks.ends.iter().enumerate() {
        if blocks.successors[block].len() > 1 && dominators[block] < blocks.starts.len() {
            points[*end] = blocks.starts[dominators[block]] as u32;
        }
    }
    points
}

/// Runs of instructions without a branch or a target inside.
struct Blocks {
    starts: Vec<usize>,
    /// The last instruction of each.
    ends: Vec<usize>,
    /// The blocks that can follow; the number of blocks stands for the end of the function.
    successors: Vec<Vec<usize>>,
}

impl Blocks {
    fn new(code: &[Next]) -> Blocks {
        let mut leads = vec![false; code.len() + 1];
        leads[0] = true;
        for (at, next) in code.iter().enumerate() {
            match next {
                Next::Following => {}
                Next::Conditional(targets) | Next::Jump(targets) => {
                    leads[at + 1] = true;
                    targets.iter().for_each(|target| leads[*target as usize] = true);
                }
                Next::End => leads[at + 1] = true,
            }
        }
        let starts: Vec<usize> = (0..code.len()).filter(|at| leads[*at]).collect();
        let end_of = |block: usize| starts.get(block + 1).copied().unwrap_or(code.len()) - 1;
        let ends: Vec<usize> = (0..starts.len()).map(end_of).collect();
        let block_of = |at: u32| starts.partition_point(|start| *start <= at as usize) - 1;
        let of = |at: u32| if at as usize >= code.len() { starts.len() } else { block_of(at) };
        let successors = ends
            .iter()
            .map(|end| {
                let following = of(*end as u32 + 1);
                let mut list: Vec<usize> = match &code[*end] {
                    Next::Following => vec![following],
                    Next::Conditional(targets) => {
                        std::iter::once(following).chain(targets.iter().map(|at| of(*at))).collect()
                    }
                    Next::Jump(targets) => targets.iter().map(|at| of(*at)).collect(),
                    Next::End => vec![starts.len()],
                };
                list.sort_unstable();
                list.dedup();
                list
            })
            .collect();
        Blocks { starts, ends, successors }
    }

    /// The immediate post-dominator of each block, by the algorithm of Cooper, Harvey and Kennedy
    /// on the reversed graph. `usize::MAX` for a block from which the end cannot be reached.
    fn post_dominators(&self) -> Vec<usize> {
        let exit = self.starts.len();
        let mut predecessors = vec![Vec::new(); exit + 1];
        for (block, successors) in self.successors.iter().enumerate() {
            successors.iter().for_each(|next| predecessors[*next].push(block));
        }
        // Blocks in postorder of the reversed graph, from the exit on.
        let mut order = vec![usize::MAX; exit + 1];
        let mut sorted = Vec::with_capacity(exit + 1);
        let mut seen = vec![false; exit + 1];
        let mut stack = vec![(exit, 0)];
        seen[exit] = true;
        while let Some((block, next)) = stack.last_mut() {
            if let Some(before) = predecessors[*block].get(*next) {
                *next += 1;
                if !seen[*before] {
                    seen[*before] = true;
                    stack.push((*before, 0));
                }
            } else {
                order[*block] = sorted.len();
                sorted.push(*block);
                stack.pop();
            }
        }
        let mut dominators = vec![usize::MAX; exit + 1];
        dominators[exit] = exit;
        let mut is_changed = true;
        while is_changed {
            is_changed = false;
            for block in sorted.iter().rev().filter(|block| **block != exit) {
                let known =
                    self.successors[*block].iter().filter(|it| dominators[**it] != usize::MAX);
                let common = known.copied().reduce(|mut a, mut b| {
                    while a != b {
                        while order[a] < order[b] {
                            a = dominators[a];
                        }
                        while order[b] < order[a] {
                            b = dominators[b];
                        }
                    }
                    a
                });
                if let Some(common) = common
                    && dominators[*block] != common
                {
                    dominators[*block] = common;
                    is_changed = true;
                }
            }
        }
        dominators.truncate(exit);
        dominators
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Next::*;

    #[test]
    fn the_sides_of_a_branch_meet_behind_it() {
        // 0: if -> 3; 1; 2: jump 4; 3; 4; 5: end
        let code = [Conditional(vec![3]), Following, Jump(vec![4]), Following, Following, End];
        assert_eq!(meeting_points(&code)[0], 4);
    }

    #[test]
    fn lanes_that_leave_a_loop_meet_behind_it() {
        // 0; 1: if -> 4 (break); 2; 3: if -> 1; 4: end
        let code = [Following, Conditional(vec![4]), Following, Conditional(vec![1]), End];
        let points = meeting_points(&code);
        assert_eq!((points[1], points[3]), (4, 4));
    }

    #[test]
    fn lanes_that_exit_meet_nowhere() {
        // 0: if -> 2; 1: end; 2: end
        assert_eq!(meeting_points(&[Conditional(vec![2]), End, End])[0], NEVER);
        // An endless loop with a branch inside.
        let code = [Conditional(vec![2]), Jump(vec![0]), Jump(vec![0])];
        assert_eq!(meeting_points(&code)[0], NEVER);
    }
}
