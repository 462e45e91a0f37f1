use super::Outcome::{Lost, Whole};
use super::*;

const TOPOLOGY: &str = "part-001/topology.csr";
const HALO: &str = "part-000/halo.bin";

#[test]
fn halos_are_found_again_from_topology() {
    for damage in [
        &|p: &Patient| p.damage(HALO, 0, 4096) as _,
        &|p: &Patient| p.damage(HALO, PAGE + 5, 1),
        &|p: &Patient| p.cut(HALO, 5000),
        &|p: &Patient| p.remove(HALO),
        &|p: &Patient| ["part-000/halo.bin", "part-001/halo.bin"].iter().for_each(|h| p.remove(h)),
    ] as [&dyn Fn(&Patient); 5]
    {
        check(plain(), damage, Whole, "halo");
    }
    let patient = Patient::of(plain());
    let whole = fs::read(patient.path(HALO)).unwrap();
    patient.remove(HALO);
    patient.repair();
    assert!(fs::read(patient.path(HALO)).unwrap() == whole);
}

#[test]
fn topology_of_another_partition_or_graph_never_passes_for_the_right_one() {
    let other = import();
    let names = ["part-000/topology.csr", TOPOLOGY];
    let swap = |p: &Patient| {
        let [a, b] = names.map(|name| fs::read(p.path(name)).unwrap());
        assert_eq!(a.len(), b.len());
        fs::write(p.path(names[0]), b).unwrap();
        fs::write(p.path(names[1]), a).unwrap();
    };
    let swap_and_damage = |p: &Patient| {
        swap(p);
        names.iter().for_each(|name| p.damage(name, 0, 8));
    };
    let foreign = |p: &Patient| {
        names.iter().for_each(|n| assert!(fs::copy(other.path().join(n), p.path(n)).unwrap() > 0));
    };
    for damage in [&swap as &dyn Fn(&Patient), &swap_and_damage, &foreign] {
        let report = check(plain(), damage, Lost(0), "misplaced topology");
        assert_eq!((report.done.len(), report.lost.len()), (0, 2), "{report:?}");
    }
}

#[test]
fn damaged_topology_stays_where_it_is_and_rows_are_served() {
    for damage in [
        &|p: &Patient| p.damage(TOPOLOGY, 0, 4096) as _,
        &|p: &Patient| p.damage(TOPOLOGY, 8, 40),
        &|p: &Patient| p.damage(TOPOLOGY, 4092, 4),
        &|p: &Patient| p.damage(TOPOLOGY, PAGE + 8, 1),
        &|p: &Patient| p.damage(TOPOLOGY, p.bytes(TOPOLOGY) - 1, 1),
        &|p: &Patient| p.cut(TOPOLOGY, p.bytes(TOPOLOGY) - 4),
        &|p: &Patient| p.remove(TOPOLOGY),
    ] as [&dyn Fn(&Patient); 7]
    {
        let report = check(plain(), damage, Lost(0), "topology");
        assert_eq!((report.done.len(), report.quarantined.len(), report.lost.len()), (0, 0, 1));
        assert!(report.lost[0].reason.contains("from a replica"), "{report:?}");
    }
    let both = |p: &Patient| {
        p.damage(TOPOLOGY, PAGE + 8, 1);
        p.remove(HALO);
    };
    let report = check(plain(), &both, Lost(0), "topology and halo");
    assert!(report.lost[1].reason.contains("all topology"), "{report:?}");
}
