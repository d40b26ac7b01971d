//! What the server is asked to do, in Lua: whole batches, each as one atomic step.
//!
//! A prefix has a few keys, in one hash slot of a cluster, whatever the number of names; so a batch of any size costs a few
//! commands, which is where a script spends its time:
//!
//! | key | kind | has |
//! | --- | --- | --- |
//! | `{tenure}:floor` | string | the largest token so far |
//! | `{tenure}:terms` | hash | name → term, as [`seen`](super::term::seen) reads it |
//! | `{tenure}:data` | hash | name → the holder's data, if it attached any |
//! | `{tenure}:names` | sorted set | names with a term, all scores 0: for lists in order of names |
//! | `{tenure}:expiries` | sorted set | names with a term, by the time from which others may have them |
//! | `{tenure}:evicted` | hash | name → the last term that an operator ended |
//! | `{tenure}:node` | hash | only in a quorum: how the server stands in it |

/// The keys of a prefix, in the order in which scripts number them.
const KEYS: [&str; 7] = ["floor", "terms", "data", "names", "expiries", "evicted", "node"];

/// What every script begins with. Its first argument is the moment, by the server's clock, from which on the call has
/// been given up, and must change nothing: a server or a network that stood still delivers it late. Every answer
/// begins with the time.
///
/// A term's numbers have a fixed width, so that they are found by their place; `%.0f` because `tostring` loses digits.
const HEAD: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {now, 'late'} end
local FLOOR, TERMS, DATA, NAMES, EXPIRIES, EVICTED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local FIRST, TOKEN, EXPIRES, ACQUIRED, RENEWED, GRACE, AWAITED, HAS_DATA = 34, 51, 68, 85, 102, 119, 136, 137

local function text(term, at) return string.sub(term, at, at + 15) end
local function number(term, at) return tonumber(text(term, at)) end
local function is_live(term) return number(term, EXPIRES) > now end
local function closed_until(term) return number(term, EXPIRES) + number(term, GRACE) end
local function is_awaited(term) return string.sub(term, AWAITED, AWAITED) == 'w' end
local function has_data(term) return string.sub(term, HAS_DATA, HAS_DATA) == 'd' end
local function digits(n) return string.format('%016.0f', n) end

-- In pieces: Lua passes some thousands of arguments at most.
local function pieces(command, key, args)
  for i = 1, #args, 4000 do redis.call(command, key, unpack(args, i, math.min(i + 3999, #args))) end
end

-- The names, which are each the first of so many arguments of an entry, and what a hash has of them.
local function entries(size)
  local names, terms = {}, {}
  for at = 3, #ARGV, size do names[#names + 1] = ARGV[at] end
  for i = 1, #names, 4000 do
    local part = redis.call('HMGET', TERMS, unpack(names, i, math.min(i + 3999, #names)))
    for j = 1, #part do terms[i + j - 1] = part[j] end
  end
  return names, terms
end

local function data_of(name, term) return has_data(term) and redis.call('HGET', DATA, name) end

local function next_token() return math.max((tonumber(redis.call('GET', FLOOR)) or 0) + 1, now) end
local function raise_floor(token) redis.call('SET', FLOOR, digits(token)) end

local function forget(names)
  for _, key in ipairs({TERMS, DATA}) do pieces('HDEL', key, names) end
  for _, key in ipairs({NAMES, EXPIRIES}) do pieces('ZREM', key, names) end
end

-- Forgets what nobody has held for this long, so many at most, and says how many.
local function sweep(idle, most)
  local idle_names = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', '(' .. digits(now - idle), 'LIMIT', 0, most)
  forget(idle_names)
  return #idle_names
end
";

/// Entries: name, lease, TTL, grace, whether it waits, owner, data. Answers: the token, or the term that is in the way
/// with its data. All grants of a batch have one token: it must rise for each name, and no name is here twice.
pub(in crate::store) const CLAIM: &str = r"
local names, olds = entries(7)
local token, granted = next_token(), false
local answers, terms, data, no_data, listed, expiries = {now}, {}, {}, {}, {}, {}
for i, name in ipairs(names) do
  local at = 7 * i - 4
  local lease, ttl, grace, waits = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4] == '1'
  local old = olds[i]
  local same = old and string.sub(old, 1, 32) == lease
  if old and not same and closed_until(old) > now then
    answers[i + 1] = {old, data_of(name, old)}
    if waits and not is_awaited(old) then
      terms[#terms + 1] = name
      terms[#terms + 1] = string.sub(old, 1, AWAITED - 1) .. 'w' .. string.sub(old, AWAITED + 1)
    end
  else
    local first, current, acquired = token, token, now
    if same and is_live(old) then
      first, current, acquired = number(old, FIRST), number(old, TOKEN), number(old, ACQUIRED)
    else
      granted = true
    end
    answers[i + 1] = current
    local attached = ARGV[at + 6]
    terms[#terms + 1] = name
    terms[#terms + 1] = string.format('%s %016.0f %016.0f %016.0f %016.0f %016.0f %016.0f %s%s %s',
      lease, first, current, now + ttl, acquired, now, grace,
      old and is_awaited(old) and 'w' or '-', attached ~= '' and 'd' or '-', ARGV[at + 5])
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
  end
end
if granted then raise_floor(token) end
pieces('HSET', TERMS, terms)
pieces('HSET', DATA, data)
pieces('HDEL', DATA, no_data)
pieces('ZADD', NAMES, listed)
pieces('ZADD', EXPIRIES, expiries)
sweep(86400000000, #names + 16)
return answers
";

/// Entries: name, lease, first token, TTL, whether the token is to rise. Answers: the token, or what there is instead:
/// the name's term, its data and the mark of an eviction.
pub(in crate::store) const RENEW: &str = r"
local names, olds = entries(5)
local token
local answers, terms, expiries = {now}, {}, {}
for i, name in ipairs(names) do
  local at = 5 * i - 2
  local old = olds[i]
  local ours = old and string.sub(old, 1, 32) == ARGV[at + 1] and text(old, FIRST) == ARGV[at + 2]
  if ours and is_live(old) then
    local ttl, current = tonumber(ARGV[at + 3]), number(old, TOKEN)
    if ARGV[at + 4] == '1' then
      token = token or next_token()
      current = token
    end
    answers[i + 1] = current
    terms[#terms + 1] = name
    terms[#terms + 1] = string.sub(old, 1, TOKEN - 1) .. digits(current) .. ' ' .. digits(now + ttl) .. ' ' ..
      text(old, ACQUIRED) .. ' ' .. digits(now) .. string.sub(old, GRACE - 1)
    expiries[#expiries + 1] = digits(now + ttl + number(old, GRACE))
    expiries[#expiries + 1] = name
  else
    answers[i + 1] = {old, old and data_of(name, old), redis.call('HGET', EVICTED, name)}
  end
end
if token then raise_floor(token) end
pieces('HSET', TERMS, terms)
pieces('ZADD', EXPIRIES, expiries)
return answers
";

/// Entries: name, lease, first token or nothing, who evicts or nothing. Answers: 1 where the term has ended now, else 0.
/// A term that began before the one that is meant, with the same lease, is an attempt at it. Releases that somebody waits
/// for are published. The token is not forgotten with the record: the floor is above it.
pub(in crate::store) const RELEASE: &str = r"
local names, olds = entries(4)
local answers, ended, no_data, marks, awaited = {now}, {}, {}, {}, {}
for i, name in ipairs(names) do
  local at = 4 * i - 1
  local old, first, by = olds[i], ARGV[at + 2], ARGV[at + 3]
  local ours = old and string.sub(old, 1, 32) == ARGV[at + 1] and (first == '' or text(old, FIRST) <= first)
  answers[i + 1] = 0
  if ours and is_live(old) then
    answers[i + 1] = 1
    ended[#ended + 1] = name
    if has_data(old) then no_data[#no_data + 1] = name end
    if is_awaited(old) then awaited[#awaited + 1] = name end
    if by ~= '' then
      marks[#marks + 1] = name
      marks[#marks + 1] = string.sub(old, 1, TOKEN - 1) .. digits(now) .. ' ' .. by
    end
  end
end
pieces('HSET', EVICTED, marks)
pieces('HDEL', TERMS, ended)
pieces('HDEL', DATA, no_data)
pieces('ZREM', NAMES, ended)
pieces('ZREM', EXPIRIES, ended)
for _, name in ipairs(awaited) do redis.call('PUBLISH', ARGV[2], name) end
return answers
";

/// From, to, how many. Answers: name, term and data of each.
pub(in crate::store) const LIST: &str = r"
local names = redis.call('ZRANGEBYLEX', NAMES, ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
local answers = {now}
for _, name in ipairs(names) do
  local term = redis.call('HGET', TERMS, name)
  if term then answers[#answers + 1] = {name, term, data_of(name, term)} end
end
return answers
";

/// For how long nobody has held them, how many at most. Answers: how many were forgotten. Marks of evictions go after the
/// same time.
pub(in crate::store) const PRUNE: &str = r"
local idle = tonumber(ARGV[3])
local marks, old_marks = redis.call('HGETALL', EVICTED), {}
for i = 1, #marks, 2 do
  if number(marks[i + 1], TOKEN) < now - idle then old_marks[#old_marks + 1] = marks[i] end
end
pieces('HDEL', EVICTED, old_marks)
return {now, sweep(idle, tonumber(ARGV[4]))}
";

/// Writes the floor if it is missing, and tries every command that the others need on every key, with a name that
/// nobody can have: so a missing right, a read-only server or something else under these keys is found now.
pub(in crate::store) const OPEN: &str = r"
redis.call('SET', FLOOR, digits(0), 'NX')
redis.call('GET', FLOOR)
for _, key in ipairs({TERMS, DATA, EVICTED}) do
  redis.call('HSET', key, '', '')
  redis.call('HGET', key, '')
  redis.call('HMGET', key, '')
  redis.call('HDEL', key, '')
end
for _, key in ipairs({NAMES, EXPIRIES}) do
  redis.call('ZADD', key, 0, '')
  redis.call('ZREM', key, '')
end
redis.call('ZRANGEBYLEX', NAMES, '-', '+', 'LIMIT', 0, 1)
redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', '(0', 'LIMIT', 0, 1)
redis.call('PUBLISH', ARGV[2], '')
return {now}
";

/// The scripts, ready to be called.
pub(in crate::store) struct Scripts {
    pub open: Script,
    pub claim: Script,
    pub renew: Script,
    pub release: Script,
    pub list: Script,
    pub prune: Script,
}

impl Scripts {
    pub fn new() -> Self {
        let [open, claim, renew, release, list, prune] =
            [OPEN, CLAIM, RENEW, RELEASE, LIST, PRUNE].map(Script::beginning_as_all);
        Self { open, claim, renew, release, list, prune }
    }
}

/// A script: its text, and the hash by which a server knows it.
pub(in crate::store) struct Script {
    pub text: String,
    pub hash: String,
}

impl Script {
    /// A script with what all of them begin with.
    pub fn beginning_as_all(body: &str) -> Self {
        let text = format!("{HEAD}{body}");
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}

/// The keys of a prefix, as scripts number them, and its channel.
pub(in crate::store) struct Keys {
    pub all: [String; 7],
    /// Where releases are published.
    pub channel: String,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{{{prefix}}}:{name}");
        Self { all: KEYS.map(key), channel: key("freed") }
    }
}
