//! One of many processes leads, and the next one does when it is gone.
//!
//! ```sh
//! cargo run --example leader --features sqlite # in the temporary folder; or: -- sqlite:PATH
//! ```
//!
//! Start it in two terminals. Both say who leads. Press ctrl-C where the leader runs: it resigns, and the other leads at once.
//! Kill it (`kill -9`) instead, and the other leads when the term has run out, 5 s later.

use std::error::Error;
use std::time::Duration;

use tenure::{Observed, Observer, Term};

/// The work of a leader: it goes on until it is told to stop, and is dropped if the term is lost.
async fn work(term: Term) -> Result<(), String> {
    println!("I lead, with token {}", term.token()); // to be sent along with whatever a leader does
    term.cancelled().await;
    println!("I tidy up, and resign");
    Ok(())
}

async fn follow(mut observer: Observer) -> tenure::Error {
    loop {
        match observer.next().await {
            Ok(Observed::Leader(record)) => {
                let says = record.data.unwrap_or_default();
                println!("{} leads, with token {}, and says {says}", record.owner, record.token);
            }
            Ok(Observed::Nobody) => println!("nobody leads"),
            Err(error) => return error,
        }
    }
}

/// Leads or follows until ctrl-C.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let anywhere = || format!("sqlite:{}", std::env::temp_dir().join("tenure-leader.db").display());
    let url = std::env::args().nth(1).unwrap_or_else(anywhere);
    let locks = tenure::connect(&url).await?;
    println!("I am {}", locks.owner());
    let election = locks.election("example/leader").ttl(Duration::from_secs(5)).data("hello");
    let end = async {
        tokio::signal::ctrl_c().await.expect("ctrl-C can be caught");
        locks.shutdown(Duration::from_secs(5)).await // the others go on until then
    };
    let (why, _, left) = tokio::join!(election.lead(work), follow(election.observe()), end);
    println!("the end: {why}");
    left.iter().for_each(|name| println!("{} was not released: {}", name.name, name.error));
    Ok(())
}
