//! A collection in MongoDB, 5 or later, or in a server that speaks its protocol.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::Document;
use mongodb::bson::oid::ObjectId;
use mongodb::error::{Error as DriverError, ErrorKind};
use mongodb::options::{Acknowledgment, ClientOptions, ConnectionString, WriteConcern};

use self::answers::{Changed, Kept, Unacknowledged, WriteError, Written, read};
use self::commands::{Commands, Sure};
use self::link::{Lane, Link, Source, is_race, is_unknown};
use super::seen::Found;
use super::url::{Identifier, StoreUrl};
use super::{About, Claim, Ended, Finding, Outcome, Page, Renewal, Renewed, Store};
use crate::error::{Error, Result};
use crate::record::{LeaseId, Name, Record, Ttl};

mod answers;
mod commands;
mod examine;
mod link;

const STORE: &str = "mongodb";

const COLLECTION: &str = "tenure_locks";

/// Where a URL names no database.
const DATABASE: &str = "tenure";

/// From here on a larger batch is hardly quicker.
const BATCH: usize = 256;

/// Claims, and as many releases, that are under way at once: two, so that the next batch gathers while one is written.
const CALLS: usize = 2;

/// The server gives up a command a second earlier.
const STATEMENT_LIMIT: Duration = Duration::from_secs(4);

/// A refused look costs the server a fraction of a millisecond.
const POLL: Duration = Duration::from_millis(100);

/// Two that insert one name at the same time: one of them is told so, and finds the name there when it looks again.
const TRIES: usize = 5;

/// The driver's options that a URL may have, in letters of either case. Those behind the empty line change nothing: retries,
/// pools and reads are Tenure's own to choose, but URLs that are handed around have them.
const OPTIONS: &[&str] = &[
    "appName",
    "authMechanism",
    "authMechanismProperties",
    "authSource",
    "connectTimeoutMS",
    "directConnection",
    "heartbeatFrequencyMS",
    "journal",
    "loadBalanced",
    "replicaSet",
    "serverMonitoringMode",
    "serverSelectionTimeoutMS",
    "srvMaxHosts",
    "srvServiceName",
    "ssl",
    "tls",
    "tlsAllowInvalidCertificates",
    "tlsCAFile",
    "tlsCertificateKeyFile",
    "tlsInsecure",
    "w",
    "wtimeoutMS",
    //
    "localThresholdMS",
    "maxConnecting",
    "maxIdleTimeMS",
    "maxPoolSize",
    "minPoolSize",
    "readConcernLevel",
    "readPreference",
    "retryReads",
    "retryWrites",
];

/// A store in a collection of a MongoDB database. Both are made if they are missing.
///
/// It has two clients of its own, on the engine's thread: one for claims, releases and lists, with up to four connections, and
/// one for renewals. Each also has the driver's connections that watch the servers.
///
/// Writes are acknowledged by a majority of the replica set, unless the URL or the options say otherwise with `w`. Nothing
/// tells of releases: those who wait look again, ten times a second.
pub struct MongoStore {
    link: Link,
    place: Place,
    concern: WriteConcern,
    commands: Commands,
    /// Known when the store is open.
    server: OnceLock<Server>,
}

/// Where the records are.
#[derive(Clone, Debug)]
struct Place {
    database: String,
    collection: Identifier,
}

/// What the server says of itself.
#[derive(Clone, Debug)]
struct Server {
    /// What it acknowledges is on several machines: it is of a replica set, or in front of some.
    replicated: bool,
}

impl MongoStore {
    /// A store in the collection `tenure_locks`, with the settings of a client that you have: servers, user, password, TLS,
    /// default database (else `tenure`), write concern. Only the settings: your client stands still when your runtime
    /// does, and renewals must not. Event handlers are not taken over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the write concern is `w=0`, or the name of the database can't be one.
    pub fn like(options: &ClientOptions) -> Result<Self> {
        let database = options.default_database.clone().unwrap_or_else(|| DATABASE.into());
        let place = Place { database, collection: Identifier::new(COLLECTION)? };
        Self::in_place(Source::Options(Box::new(options.clone())), place)
    }

    /// The same in another collection, and in another database if it is given.
    #[must_use]
    pub fn with_collection(self, database: Option<&Identifier>, collection: &Identifier) -> Self {
        let database = database.map_or(self.place.database, |database| database.as_str().into());
        let place = Place { database, collection: collection.clone() };
        Self::checked(self.link.into_source(), place, self.concern)
    }

    pub(super) fn from_url(url: &StoreUrl) -> Result<Arc<dyn Store>> {
        url.check_options_of_any_case(OPTIONS)?;
        let parsed = ConnectionString::parse(url.for_driver()).map_err(|_| url.refuse(why_unreadable(url)))?;
        let named = url.identifier("schema")?.map(|database| database.as_str().to_owned());
        let database = named.or_else(|| parsed.default_database.clone()).unwrap_or_else(|| DATABASE.into());
        let collection = url.identifier("table")?.map_or_else(|| Identifier::new(COLLECTION), Ok)?;
        let store = Self::in_place(Source::Url(Box::new(parsed)), Place { database, collection })?;
        Ok(Arc::new(store))
    }

    fn in_place(source: Source, place: Place) -> Result<Self> {
        check_database(&place.database)?;
        let concern = match &source {
            Source::Options(options) => options.write_concern.clone(),
            Source::Url(url) => url.write_concern.clone(),
        };
        let concern = concern.unwrap_or_default();
        if concern.w == Some(Acknowledgment::Nodes(0)) {
            return Err(Error::invalid("w", "is 0: a grant that nobody acknowledges is none; leave it out"));
        }
        Ok(Self::checked(source, place, concern))
    }

    fn checked(source: Source, place: Place, concern: WriteConcern) -> Self {
        Self {
            link: Link::new(source, place.database.clone()),
            commands: Commands::new(place.collection.as_str(), &concern),
            place,
            concern,
            server: OnceLock::new(),
        }
    }

    /// How sure a read of several names can be.
    fn sure(&self) -> Sure {
        match self.server.get() {
            Some(Server { replicated: true }) => Sure::Majority,
            _ => Sure::Local,
        }
    }

    async fn look_at_server(&self) -> Result<Server> {
        let hello = self.link.run(&self.link.main, mongodb::bson::doc! { "hello": 1 }).await?;
        let in_front_of_shards = hello.get_str("msg").is_ok_and(|said| said == "isdbgrid");
        Ok(Server { replicated: in_front_of_shards || hello.contains_key("setName") })
    }

    /// Refuses a collection that folds names, or is none.
    async fn check_collection(&self) -> Result<()> {
        let made = match self.link.find(&self.link.main, self.commands.made()).await {
            Err(error) if error.is_transient() => return Err(error),
            // Not everybody may look.
            made => made.unwrap_or_default(),
        };
        let Some(made) = made.first() else { return Ok(()) };
        if made.get_str("type").is_ok_and(|kind| kind != "collection") {
            return Err(self.link.refuse("has something else than a collection in the place of the locks"));
        }
        let folds = made.get_document("options").is_ok_and(|options| options.contains_key("collation"));
        match folds {
            true => Err(self.link.refuse("has the collection with a collation: names must be compared byte by byte")),
            false => Ok(()),
        }
    }

    /// Claims something that can't be a name, and forgets it: so what the server does not know, and the user may not do, is
    /// told now, and not at the first lock.
    async fn rehearse(&self) -> Result<()> {
        let (id, call) = (ObjectId::new(), ObjectId::new());
        let claim = rehearsal()?;
        let answer = self.insist(|| self.commands.claim_one(id, &claim, call)).await?;
        let granted = answer.map_err(|error| match &*error.kind {
            ErrorKind::Command(said) if is_unknown(said.code) => self.no_server_clock(&said.message),
            _ => self.link.explain(&error),
        })?;
        let changed: Changed = read(granted)?;
        self.acknowledged(changed.unacknowledged)?;
        let ttl = changed.value.as_ref().and_then(Kept::ttl);
        let forgotten = self.link.run(&self.link.main, self.commands.forget(id)).await?;
        self.written(forgotten)?.into_iter().try_for_each(|(_, error)| Err(error))?;
        match ttl == Some(claim.ttl.get()) {
            true => Ok(()),
            false => Err(self.no_server_clock("it has written something else")),
        }
    }

    fn no_server_clock(&self, said: &str) -> Error {
        self.link.refuse(&format!(
            "can't decide by its own clock: MongoDB 5 or later is needed, or a server that knows $$NOW in updates with a \
             pipeline (it says: {said})"
        ))
    }

    /// Has a command carried out that may insert a name, and again if another inserted it at the same moment.
    async fn insist(&self, command: impl Fn() -> Document) -> Result<Result<Document, DriverError>> {
        let mut answer = self.link.try_run(&self.link.main, command()).await?;
        for _ in 1..TRIES {
            if !answer.as_ref().is_err_and(lost_a_race) {
                break;
            }
            answer = self.link.try_run(&self.link.main, command()).await?;
        }
        Ok(answer)
    }

    async fn claim_one(&self, claim: &Claim) -> Result<Outcome> {
        let call = ObjectId::new();
        let answer = self.insist(|| self.commands.claim_one(claim.name.as_str(), claim, call)).await?;
        let changed: Changed = read(answer.map_err(|error| self.link.explain(&error))?)?;
        self.acknowledged(changed.unacknowledged)?;
        changed.value.map_or(Found::Other(None), |kept| kept.after_claim(call)).outcome()
    }

    async fn claim_many(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        let call = ObjectId::new();
        let mut failed = self.write_claims(claims, call).await?;
        let mut found = self.read_back(&self.link.main, claims.iter().map(|claim| &claim.name)).await?;
        let outcome = |(entry, claim): (usize, &Claim)| match failed.remove(&entry) {
            Some(error) => Err(error),
            None => {
                found.remove(claim.name.as_str()).map_or(Found::Other(None), |kept| kept.after_claim(call)).outcome()
            }
        };
        Ok(claims.iter().enumerate().map(outcome).collect())
    }

    /// Returns the entries that failed.
    async fn write_claims(&self, claims: &[Claim], call: ObjectId) -> Result<BTreeMap<usize, Error>> {
        let mut left: Vec<usize> = (0..claims.len()).collect();
        let mut failed = BTreeMap::new();
        for _ in 0..TRIES {
            let updates = left.iter().map(|entry| commands::claim(&claims[*entry], call)).collect();
            let written: Written = read(self.link.run(&self.link.main, self.commands.write(updates)).await?)?;
            let races = written.errors.iter().filter(|error| is_race(error.code, &error.said));
            let again: Vec<usize> = races.filter_map(|error| left.get(error.index).copied()).collect();
            let errors = self.errors(written)?;
            failed.retain(|entry, _| !left.contains(entry));
            failed.extend(errors.into_iter().filter_map(|(index, error)| Some((*left.get(index)?, error))));
            if again.is_empty() {
                break;
            }
            left = again;
        }
        Ok(failed)
    }

    /// The documents of these names.
    async fn read_back<'a>(&self, lane: &Lane, names: impl Iterator<Item = &'a Name>) -> Result<HashMap<String, Kept>> {
        let names: Vec<&Name> = names.collect();
        let found = self.link.find(lane, self.commands.read(&names, self.sure())).await?;
        found.into_iter().map(|document| read::<Kept>(document).map(|kept| (kept.name.clone(), kept))).collect()
    }

    /// The entries that an update or a deletion failed for.
    fn written(&self, answer: Document) -> Result<BTreeMap<usize, Error>> {
        self.errors(read(answer)?)
    }

    fn errors(&self, written: Written) -> Result<BTreeMap<usize, Error>> {
        self.acknowledged(written.unacknowledged)?;
        let error = |error: WriteError| (error.index, self.link.refused(error.code, &error.said));
        Ok(written.errors.into_iter().map(error).collect())
    }

    /// Without the acknowledgment of a majority it may be undone, or not: the outcome is unknown.
    fn acknowledged(&self, failed: Option<Unacknowledged>) -> Result<()> {
        let why = |failed: Unacknowledged| format!("{} did not acknowledge a write: {}", self.link.place, failed.said);
        failed.map_or(Ok(()), |failed| Err(Error::transient(STORE, why(failed))))
    }

    /// Which of the releases were this call's, if it was not all of them. A name that was taken and released again since
    /// shows no trace: its release is unknown, and asked for again.
    async fn freed(&self, terms: &[Ended], call: ObjectId, count: usize) -> Result<Vec<Result<bool>>> {
        let found = self.read_back(&self.link.main, terms.iter().map(|term| &term.name)).await?;
        let is_marked = |term: &Ended| found.get(term.name.as_str()).is_some_and(|kept| kept.was_ended_by(call));
        let all_known = terms.iter().filter(|term| is_marked(term)).count() == count;
        let answer = |term: &Ended| match is_marked(term) {
            false if !all_known => Err(Error::transient(STORE, format!("who released {} is unknown", term.name))),
            marked => Ok(marked),
        };
        Ok(terms.iter().map(answer).collect())
    }
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MongoStore({}, {})", self.link.place, self.place.collection.as_str())
    }
}

#[async_trait]
impl Store for MongoStore {
    fn about(&self) -> About {
        About {
            store: STORE,
            place: Some(format!("{}.{}", self.place.database, self.place.collection.as_str())),
            push: false,
            poll: POLL,
            calls: CALLS,
            batch: BATCH,
            statement_limit: STATEMENT_LIMIT,
            min_ttl: Ttl::MIN,
            durability: "survives the loss of a minority of the replica set's members; without a replica set, what its one \
                         server's journal survives",
            caveats: vec![
                "the primary's clock decides: setting it forward, or failing over to a member whose clock is ahead, ends \
                 terms early"
                    .into(),
                "a write concern weaker than majority, or a server without a replica set, may lose a grant: two may then \
                 hold a name, and only a fence tells them apart"
                    .into(),
            ],
        }
    }

    async fn open(&self) -> Result<()> {
        self.link.open().await?;
        let server = self.look_at_server().await?;
        let _ = self.server.set(server);
        self.check_collection().await?;
        self.rehearse().await?;
        // Renewals find their connection open.
        self.link.run(&self.link.renewals, mongodb::bson::doc! { "ping": 1 }).await?;
        Ok(())
    }

    /// One name is one command. Several are two: one that claims them all, and one that reads what became of them.
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Outcome>>> {
        match claims {
            [claim] => Ok(vec![self.claim_one(claim).await]),
            claims => self.claim_many(claims).await,
        }
    }

    /// A live term that is still there was renewed: an expired one never comes back to life.
    async fn renew(&self, terms: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let renewals = self.commands.write(terms.iter().map(commands::renewal).collect());
        let mut failed = self.written(self.link.run(&self.link.renewals, renewals).await?)?;
        let mut found = self.read_back(&self.link.renewals, terms.iter().map(|term| &term.name)).await?;
        let renewed = |(entry, term): (usize, &Renewal)| match failed.remove(&entry) {
            Some(error) => Err(error),
            None => found
                .remove(term.name.as_str())
                .map_or(Found::Other(None), |kept| kept.after_renewal(term))
                .renewed(term),
        };
        Ok(terms.iter().enumerate().map(renewed).collect())
    }

    /// One command, unless a term was over already.
    async fn release(&self, terms: &[Ended]) -> Result<Vec<Result<bool>>> {
        let call = ObjectId::new();
        let ends = self.commands.write(terms.iter().map(|term| commands::end(term, call)).collect());
        let written: Written = read(self.link.run(&self.link.main, ends).await?)?;
        let count = written.count;
        let mut failed = self.errors(written)?;
        let answers = match count {
            0 => terms.iter().map(|_| Ok(false)).collect(),
            all if all == terms.len() => terms.iter().map(|_| Ok(true)).collect(),
            some => self.freed(terms, call, some).await?,
        };
        let answer = |(entry, answer)| failed.remove(&entry).map_or(answer, Err);
        Ok(answers.into_iter().enumerate().map(answer).collect())
    }

    async fn list(&self, page: &Page) -> Result<Vec<Record>> {
        let sure = match (self.sure(), page.limit) {
            (Sure::Majority, 1) => Sure::Linearizable,
            (sure, _) => sure,
        };
        let found = self.link.find(&self.link.main, self.commands.list(page, sure)).await?;
        let records = found.into_iter().map(|document| read::<Kept>(document)?.seen().record());
        records.filter_map(Result::transpose).collect()
    }

    async fn prune(&self, idle: Duration) -> Result<u64> {
        let pruned: Written = read(self.link.run(&self.link.main, self.commands.prune(idle)).await?)?;
        let count = pruned.count as u64;
        self.errors(pruned)?.into_values().next().map_or(Ok(count), Err)
    }

    fn schema(&self) -> Option<String> {
        let (database, collection) = (&self.place.database, self.place.collection.as_str());
        Some(SCHEMA.replace("{database}", database).replace("{collection}", collection))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::findings(self).await
    }
}

/// What an administrator gets to read.
const SCHEMA: &str = "\
// Tenure's locks: one document a name. It stays when its name is released, to remember the token; `tenure prune` forgets
// those that nobody has used for long. Times are by the server's clock. There is no index besides that of _id, and no
// collation: names are compared byte by byte.
// For mongosh. A user needs only the actions find, insert, update and remove on the collection:
db.getSiblingDB(\"{database}\").createCollection(\"{collection}\");
db.getSiblingDB(\"{database}\").createRole({
  role: \"{collection}\", roles: [],
  privileges: [{ resource: { db: \"{database}\", collection: \"{collection}\" },
                 actions: [\"find\", \"insert\", \"update\", \"remove\"] }]
});
";

fn lost_a_race(error: &DriverError) -> bool {
    matches!(&*error.kind, ErrorKind::Command(said) if is_race(said.code, &said.message))
}

/// A claim that nobody will ever make.
fn rehearsal() -> Result<Claim> {
    Ok(Claim {
        name: Name::new("rehearsal")?,
        lease: LeaseId::random(),
        owner: "tenure".into(),
        ttl: Ttl::DEFAULT,
        grace: Duration::ZERO,
        data: None,
        waits: false,
    })
}

/// MongoDB's own rule.
fn check_database(name: &str) -> Result<()> {
    let forbidden = |c: char| c.is_control() || "/\\. \"$*<>:|?".contains(c);
    if name.is_empty() || name.len() > 63 || name.contains(forbidden) {
        let rule = "must be 1 to 63 bytes without blanks and any of /\\.\"$*<>:|?";
        return Err(Error::invalid("database", format!("{name:?} {rule}")));
    }
    Ok(())
}

/// What the driver says of the URL: without user and password, in case it repeats some of them.
fn why_unreadable(url: &StoreUrl) -> String {
    match ConnectionString::parse(url.without_user()) {
        Ok(_) => "can't be read: write special characters of the user and the password as %XX".into(),
        Err(error) => format!("can't be read: {}", error.kind),
    }
}
