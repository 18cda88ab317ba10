//! Cases with Azure's official Rust SDK, reported as JSON lines (tests/interop/suites/programs.py says how).

mod cases;
mod hub;
mod processor;
mod refusals;

use std::{env, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use hub::{Found, Hub};
use serde_json::json;

/// The SDK's receivers wait without end, so every case has a limit.
const CASE_MAX: Duration = Duration::from_secs(60);

// One thread, because of the AMQP library below the SDK, fe2o3-amqp 0.16.2: a sender notes a transfer only once it is
// sent (src/link/sender_link.rs, send_payload_with_transfer), and waits forever for an acknowledgement that another
// thread took in before. Loopback is fast enough for that.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let hub = Hub::from_environment();
    let wanted = env::var("TIDEGATE_CASES").unwrap_or_default();
    let wanted: Vec<&str> = wanted.lines().collect();
    for (name, run) in cases::ALL {
        if !wanted.is_empty() && !wanted.contains(name) {
            continue;
        }
        let run = AssertUnwindSafe(tokio::time::timeout(CASE_MAX, run(&hub)));
        let found: Found = match run.catch_unwind().await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(format!("It took longer than {CASE_MAX:?}.").into()),
            Err(_) => Err("It panicked.".into()),
        };
        let (outcome, detail) = match found {
            Ok(()) => ("passed", String::new()),
            Err(error) => ("failed", error.to_string()),
        };
        println!(
            "{}",
            json!({"name": name, "outcome": outcome, "detail": detail})
        );
    }
}
