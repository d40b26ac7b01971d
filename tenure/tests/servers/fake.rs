//! A server that speaks MongoDB's protocol, and says what a test wants to hear.

use std::sync::{Arc, Mutex};

use mongodb::bson::{Document, doc};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The code of a message, the only one that is spoken.
const MESSAGE: u32 = 2013;

/// An answer with this in it is never given.
pub const SILENCE: &str = "silence";

type Answer = Arc<dyn Fn(&Document) -> Document + Send + Sync>;

/// It poses as the primary of a replica set of one. It is gone when its runtime is.
pub struct Fake {
    port: u16,
    commands: Arc<Mutex<Vec<Document>>>,
}

impl Fake {
    /// Answers all commands but those by which a driver gets to know it.
    pub async fn start(answer: impl Fn(&Document) -> Document + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self { port: listener.local_addr().unwrap().port(), commands: Arc::default() };
        let (commands, port, answer): (_, _, Answer) = (fake.commands.clone(), fake.port, Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, port, answer.clone(), commands.clone()));
            }
        });
        fake
    }

    pub fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/tenure", self.port)
    }

    /// What it was asked.
    pub fn commands(&self) -> Vec<Document> {
        self.commands.lock().unwrap().clone()
    }
}

async fn serve(mut client: TcpStream, port: u16, answer: Answer, commands: Arc<Mutex<Vec<Document>>>) {
    while let Some((number, command)) = read(&mut client).await {
        let says_hello = ["hello", "isMaster", "ismaster"].iter().any(|name| command.contains_key(name));
        let answer = if says_hello { hello(port) } else { answer(&command) };
        commands.lock().unwrap().push(command);
        if answer.contains_key(SILENCE) {
            continue;
        }
        if write(&mut client, number, &answer).await.is_err() {
            return;
        }
    }
}

fn hello(port: u16) -> Document {
    let own = format!("127.0.0.1:{port}");
    doc! {
        "ok": 1, "isWritablePrimary": true, "ismaster": true, "setName": "set", "hosts": [&own], "primary": &own, "me": own,
        "setVersion": 1, "minWireVersion": 0, "maxWireVersion": 21, "maxBsonObjectSize": 1 << 24,
        "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "logicalSessionTimeoutMinutes": 30,
    }
}

/// A message's number and its document; `None` when the client is gone.
async fn read(client: &mut TcpStream) -> Option<(u32, Document)> {
    let length = client.read_u32_le().await.ok()?;
    let number = client.read_u32_le().await.ok()?;
    let mut rest = vec![0; length as usize - 8];
    client.read_exact(&mut rest).await.ok()?;
    // Two numbers more, flags, and the kind of the only section.
    Some((number, Document::from_reader(&rest[13..]).unwrap()))
}

async fn write(client: &mut TcpStream, to: u32, answer: &Document) -> std::io::Result<()> {
    let answer = answer.to_vec().unwrap();
    let length = 21 + answer.len() as u32;
    let mut message: Vec<u8> = [length, 0, to, MESSAGE, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    message.push(0);
    message.extend(answer);
    client.write_all(&message).await
}
