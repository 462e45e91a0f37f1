//! A partition on several servers: a put reaches all of them, or says whom it has reached.

use std::fs;

use super::*;

/// A copy of a graph's folder: a replica.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_put_reaches_all_holders_or_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 2);
    let replica = dir.path().join("replica");
    copy(&graph, &replica);
    let (first, first_address) = start(&config(&graph, 2));
    let (second, second_address) = start(&config(&replica, 1));
    let short =
        ClientConfig { deadline: Duration::from_secs(3), attempts: 2, ..ClientConfig::default() };
    let client = Client::connect(&[&first_address, &second_address], short).unwrap();
    let mut expected = Expected::new(1000);
    let ids = shuffled_ids(1000, 300);
    let stats = client.put_rows("feat", &ids, &put_rows(&ids, 1)).unwrap();
    assert_eq!((stats.rows, stats.requests), (300, 4));
    expected.put(&ids, 1);
    for address in [&first_address, &second_address] {
        expected.check(&[address], "on both");
    }
    assert_eq!(client.commit().unwrap(), 2);

    second.stop().unwrap();
    let error = client.put_rows("feat", &ids, &put_rows(&ids, 2)).unwrap_err();
    let ClientError::PutDiffers { took, address, .. } = &error else { panic!("{error}") };
    assert_eq!((took, &address.to_string()), (&first_address, &second_address));
    expected.put(&ids, 2);
    expected.check(&[&first_address], "on the first alone");

    // It comes back, behind: a repeated put makes them the same.
    let listen = Some(second_address.parse().unwrap());
    let (second, _) = start(&ServerConfig { listen, ..config(&replica, 2) });
    client.put_rows("feat", &ids, &put_rows(&ids, 2)).unwrap();
    for address in [&first_address, &second_address] {
        expected.check(&[address], "on both again");
    }
    second.stop().unwrap();

    // A holder that takes no updates would go on with the old rows: nobody is asked.
    let (second, second_address) = start(&ServerConfig { writable: false, ..config(&replica, 1) });
    let client = connect(&[&first_address, &second_address]);
    let error = client.put_rows("feat", &ids, &put_rows(&ids, 3)).unwrap_err().to_string();
    assert!(error.contains(&second_address) && error.contains("partition 0"), "{error}");
    expected.check(&[&first_address], "as before");
    first.stop().unwrap();
    second.stop().unwrap();
}
