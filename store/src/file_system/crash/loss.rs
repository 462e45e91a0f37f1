//! Loss of power: the device that a machine finds when it starts again.

use super::dice::Dice;
use super::folder::{Folder, Names};
use super::state::{Node, NodeIdx, ROOT, State};

impl State {
    pub(super) fn after_loss(&self, seed: u64) -> Self {
        let mut found = Self { nodes: Vec::new(), ..Self::new(seed) };
        let mut dice = Dice::new(seed ^ 0x10_55);
        self.keep(ROOT, &mut found, &mut dice);
        found
    }

    /// Copies what is left of a node and of all below it; returns its place in `found`.
    fn keep(&self, node: NodeIdx, found: &mut Self, dice: &mut Dice) -> NodeIdx {
        let place = found.nodes.len();
        match &self.nodes[node] {
            Node::File { content, .. } => {
                found.nodes.push(Node::File { content: content.after_loss(dice), n_pins: 0 });
            }
            Node::Folder(folder, pairs) => {
                found.nodes.push(Node::Folder(Folder::default(), pairs.after_loss(dice)));
                let names = folder.after_loss(dice).into_iter();
                let names: Names =
                    names.map(|(name, node)| (name, self.keep(node, found, dice))).collect();
                if let Node::Folder(folder, _) = &mut found.nodes[place] {
                    *folder = Folder::durable(names);
                }
            }
        }
        place
    }
}
