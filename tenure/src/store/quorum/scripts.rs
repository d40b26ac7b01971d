//! What a quorum's server is asked to do beyond what the one server of a [`RedisStore`](crate::store::redis::RedisStore) is.
//!
//! How a server stands in the quorum is in the hash `{tenure}:node`:
//!
//! | field | has |
//! | --- | --- |
//! | `run` | the run of the server that it was last greeted in |
//! | `since` | when it was found that it is a new run, or has lost its data |
//! | `votes` | there if its votes count |
//! | `longest` | the longest time, in microseconds, for which a claim here has closed a name |

use crate::store::redis::scripts::{CLAIM, LIST, OPEN, PRUNE, RELEASE, RENEW, Script, Scripts};

/// What stands before all that counts as a vote.
const VOTES: &str = r"
local NODE = KEYS[7]
local standing = redis.call('HMGET', NODE, 'votes', 'longest')
if not standing[1] then return {now, 'newborn'} end
local function keep_longest(longest)
  if longest > (tonumber(standing[2]) or 0) then redis.call('HSET', NODE, 'longest', string.format('%.0f', longest)) end
end
";

/// A claim's TTL and grace are the third and fourth of its seven parts.
const LONGEST_CLAIM: &str = r"
local longest = 0
for at = 3, #ARGV, 7 do longest = math.max(longest, tonumber(ARGV[at + 2]) + tonumber(ARGV[at + 3])) end
keep_longest(longest)
";

/// The run that a new connection has reached. Only a restart ends a run, and with it all connections, so whoever asks
/// for anything has greeted this run: one that was not greeted before has no vote.
const GREET: &str = r"
local NODE = KEYS[7]
if redis.call('HGET', NODE, 'run') ~= ARGV[3] then
  redis.call('HSET', NODE, 'run', ARGV[3], 'since', string.format('%.0f', now))
  redis.call('HDEL', NODE, 'votes')
end
return {now}
";

/// Answers: whether it votes, since when it is as it is (0 if it must be greeted first: it was emptied in the middle of
/// its run) and for how long, its floor, the longest claim.
const STANDING: &str = r"
local found = redis.call('HMGET', KEYS[7], 'votes', 'since', 'longest')
local since = tonumber(found[2]) or 0
return {now, found[1] and 1 or 0, since, math.max(0, now - since), tonumber(redis.call('GET', FLOOR)) or 0,
  tonumber(found[3]) or 0}
";

/// Since when it was as it was found, the floor, the longest claim. Answers: 1 if it votes from now on, 0 if it has been
/// lost again meanwhile.
const ADMIT: &str = r"
local NODE = KEYS[7]
local found = redis.call('HMGET', NODE, 'since', 'longest')
if found[1] ~= ARGV[3] then return {now, 0} end
raise_floor(math.max(tonumber(redis.call('GET', FLOOR)) or 0, tonumber(ARGV[4])))
redis.call('HSET', NODE, 'votes', 1, 'longest', string.format('%.0f', math.max(tonumber(found[2]) or 0, tonumber(ARGV[5]))))
return {now, 1}
";

/// The second round. Entries: name, lease, first token or nothing for a term that begins, token. Answers: 1 where the
/// lease is live and has that token now, else 0.
const CONFIRM: &str = r"
local names, olds = entries(4)
local answers, terms, highest = {now}, {}, 0
for i, name in ipairs(names) do
  local at = 4 * i - 1
  local old, first, token = olds[i], ARGV[at + 2], ARGV[at + 3]
  local ours = old and string.sub(old, 1, 32) == ARGV[at + 1] and (first == '' or text(old, FIRST) == first)
  answers[i + 1] = 0
  if ours and is_live(old) then
    answers[i + 1] = 1
    terms[#terms + 1] = name
    terms[#terms + 1] = string.sub(old, 1, 33) .. (first == '' and token or first) .. ' ' .. token .. string.sub(old, 67)
    highest = math.max(highest, tonumber(token))
  end
end
pieces('HSET', TERMS, terms)
if highest > (tonumber(redis.call('GET', FLOOR)) or 0) then raise_floor(highest) end
return answers
";

/// Entries: names. Answers: the term and its data, where there is one.
const LOOK: &str = r"
local names, olds = entries(1)
local answers = {now}
for i, name in ipairs(names) do answers[i + 1] = {olds[i], olds[i] and data_of(name, olds[i])} end
return answers
";

/// Puts back what others have. Entries: name, lease, first token, token, TTL, for how long it has been held, grace, owner,
/// data. Answers: 1 where it was put back; not where somebody else has the name, or the term was evicted.
const PUT_BACK: &str = r"
local names, olds = entries(9)
local answers, terms, data, no_data, listed, expiries, highest, longest = {now}, {}, {}, {}, {}, {}, 0, 0
for i, name in ipairs(names) do
  local at = 9 * i - 6
  local lease, first, token, ttl, held = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4]), ARGV[at + 5]
  local grace, owner, attached = tonumber(ARGV[at + 6]), ARGV[at + 7], ARGV[at + 8]
  local old, mark = olds[i], redis.call('HGET', EVICTED, name)
  local free = not old or string.sub(old, 1, 32) == lease or closed_until(old) <= now
  local evicted = mark and string.sub(mark, 1, 49) == lease .. ' ' .. first
  answers[i + 1] = 0
  if free and not evicted then
    answers[i + 1] = 1
    terms[#terms + 1] = name
    terms[#terms + 1] = string.format('%s %s %s %016.0f %016.0f %016.0f %016.0f %s%s %s', lease, first, token, now + ttl,
      now - tonumber(held), now, grace, old and is_awaited(old) and 'w' or '-', attached ~= '' and 'd' or '-', owner)
    if attached ~= '' then
      data[#data + 1] = name
      data[#data + 1] = attached
    elseif old and has_data(old) then
      no_data[#no_data + 1] = name
    end
    listed[#listed + 1] = 0
    listed[#listed + 1] = name
    expiries[#expiries + 1] = digits(now + ttl + grace)
    expiries[#expiries + 1] = name
    highest = math.max(highest, tonumber(token))
    longest = math.max(longest, ttl + grace)
  end
end
pieces('HSET', TERMS, terms)
pieces('HSET', DATA, data)
pieces('HDEL', DATA, no_data)
pieces('ZADD', NAMES, listed)
pieces('ZADD', EXPIRIES, expiries)
if highest > (tonumber(redis.call('GET', FLOOR)) or 0) then raise_floor(highest) end
keep_longest(longest)
return answers
";

/// The scripts of a quorum's server that a single one has no use for.
pub(super) struct OwnScripts {
    pub standing: Script,
    pub admit: Script,
    pub confirm: Script,
    pub look: Script,
    pub put_back: Script,
}

impl OwnScripts {
    pub fn new() -> Self {
        Self {
            standing: Script::beginning_as_all(STANDING),
            admit: Script::beginning_as_all(ADMIT),
            confirm: vote(CONFIRM),
            look: vote(LOOK),
            put_back: vote(PUT_BACK),
        }
    }
}

/// What a connection begins with.
pub(super) fn greeting() -> Script {
    Script::beginning_as_all(GREET)
}

/// The scripts that every Redis store has, for a server whose votes may not count.
pub(super) fn voting() -> Scripts {
    Scripts {
        open: Script::beginning_as_all(OPEN),
        claim: vote(&format!("{LONGEST_CLAIM}{CLAIM}")),
        renew: vote(RENEW),
        release: vote(RELEASE),
        list: vote(LIST),
        prune: vote(PRUNE),
    }
}

fn vote(body: &str) -> Script {
    Script::beginning_as_all(&format!("{VOTES}{body}"))
}
