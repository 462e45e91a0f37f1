//! The CUDA side without a GPU: the tests that need a device, in a process of their own whose
//! loader finds a simulated driver. The top of `driver.cpp` describes its checks.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Builds the driver; `None` where there is no C++ compiler.
fn driver() -> Option<TempDir> {
    let dir = tempfile::tempdir().unwrap();
    // Tests run in their crate's folder, which need not be the one that they were built in.
    let sources = Path::new("src/device");
    let library = dir.path().join("libcuda.so");
    let flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread"];
    // Traps need no runtime library of the sanitizer in a process that is not C++.
    let checks = ["-fsanitize=alignment,shift", "-fsanitize-undefined-trap-on-error"];
    let built = Command::new("c++")
        .args(flags)
        .args(checks)
        .arg("-I")
        .arg(sources.join("cuda"))
        .arg(sources.join("simulated/driver.cpp"))
        .arg("-o")
        .arg(&library)
        .output();
    let Ok(built) = built else {
        println!("SKIPPED: no C++ compiler for the simulated driver");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::copy(&library, dir.path().join("libnvrtc.so")).unwrap();
    Some(dir)
}

/// Runs a test of this binary under the driver.
fn run(driver: &TempDir, test: &str, setting: Option<(&str, &str)>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", driver.path());
    command.envs(setting);
    command.output().unwrap()
}

#[test]
fn the_tests_of_a_device_pass_under_a_driver_that_puts_everything_off() {
    let Some(driver) = driver() else { return };
    for test in [
        "device_and_host_give_the_same_batches",
        "a_tensor_of_another_device_is_refused",
        "slots_that_do_not_fit_are_refused",
    ] {
        let output = run(&driver, &format!("device::tier::tests::{test}"), None);
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("device: Simulated"), "{text}{errors}");
        assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    }
    let levels = "two_level::tests::model::two_tiers_on_a_device_do_as_on_the_host";
    let output = run(&driver, levels, None);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("device: Simulated") && text.contains("1 passed"), "{text}");
}

#[test]
fn a_device_that_fails_at_any_point_returns_an_error_and_no_wrong_row() {
    let Some(driver) = driver() else { return };
    let n_points = if std::env::var_os("LODE_LONG").is_some() { 60 } else { 12 };
    for point in 1..=n_points {
        let test = "device::tier::tests::a_device_that_fails_is_lost_and_says_so";
        let setting = ("SIMULATED_FAILURE", &*point.to_string());
        let output = run(&driver, test, Some(setting));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("device: Simulated"), "{text}{errors}");
        assert!(output.status.success(), "failure {point}: {text}{errors}");
    }
}

/// So the first of these tests can fail.
#[test]
fn a_wait_that_is_missing_is_noticed() {
    let Some(driver) = driver() else { return };
    for deaf in ["host", "streams"] {
        let test = "device::tier::tests::device_and_host_give_the_same_batches";
        let output = run(&driver, test, Some(("SIMULATED_DEAF", deaf)));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("device: Simulated"), "{text}");
        assert!(!output.status.success(), "deaf to {deaf}: {text}");
    }
}
