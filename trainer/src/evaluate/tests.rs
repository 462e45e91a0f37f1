use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::{PartId, PartitionBook};
use lodestore_models::loss::Loss;
use lodestore_models::metric::Accuracy;

use super::*;
use crate::config::TrainConfig;
use crate::layerwise::PassLimits;
use crate::layerwise::tests::{N_NODES, model, naive, pass, sources, topology};
use crate::options::ModelKind;

#[test]
fn accuracy_is_that_of_whole_neighbourhoods() {
    let (topology, sources) = (topology(), sources());
    let book = PartitionBook::from_counts(&[N_NODES]).unwrap();
    let config = TrainConfig::default();
    let labels = Labels::read(&sources, &[PartId(0)], &book, &config, None).unwrap();
    for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
        let model = model(kind, [6, 4], labels.n_classes);
        let expected = |nodes: &[NodeId]| {
            let logits = naive(&model, &topology, nodes);
            let loss = Loss::new(&logits, &labels.targets_of(nodes));
            Some(loss.n_right as f64 / nodes.len() as f64)
        };
        let [validation, test] = [expected(&labels.validation), expected(&labels.test)];
        for n_bytes in [1, 1000, 1 << 20] {
            let evaluator = |measure_test| {
                let pass = pass(&topology, PassLimits::within(n_bytes));
                Evaluator { pass, labels: &labels, metric: Metric::Accuracy, measure_test }
                    .accuracy(&model, &mut ProcessGroup::new(&mut ThreadCollective::alone()))
                    .unwrap()
            };
            assert_eq!(evaluator(true), Accuracy { validation, test }, "{kind} {n_bytes}");
            assert_eq!(evaluator(false), Accuracy { validation, test: None }, "{kind} {n_bytes}");
        }
    }
}
