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
/// A term's numbers have a fixed width, so that they are found by their place. Making text of a number is what takes the
/// longest here: it is done once a batch where it can be. With `%.0f`, because `tostring` loses digits.
const HEAD: &str = r"
local sub, format, call = string.sub, string.format, redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {now, 'late'} end
local FLOOR, TERMS, DATA, NAMES, EXPIRIES, EVICTED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local FIRST, TOKEN, EXPIRES, ACQUIRED, RENEWED, GRACE, AWAITED, HAS_DATA = 34, 51, 68, 85, 102, 119, 136, 137

local function text(term, at) return sub(term, at, at + 15) end
local function number(term, at) return tonumber(text(term, at)) end
local function is_live(term) return number(term, EXPIRES) > now end
local function closed_until(term) return number(term, EXPIRES) + number(term, GRACE) end
local function is_awaited(term) return sub(term, AWAITED, AWAITED) == 'w' end
local function has_data(term) return sub(term, HAS_DATA, HAS_DATA) == 'd' end
local function digits(n) return format('%016.0f', n) end

-- So much later than now, in digits; most entries of a batch have the same TTL.
local later = {}
local function after(micros)
  local known = later[micros]
  if not known then
    known = digits(now + micros)
    later[micros] = known
  end
  return known
end

-- In pieces: Lua passes some thousands of arguments at most.
local function pieces(command, key, args)
  for i = 1, #args, 4000 do call(command, key, unpack(args, i, math.min(i + 3999, #args))) end
end

-- The names, which are each the first of so many arguments of an entry, and their terms.
local function entries(size)
  local names, terms, count = {}, {}, 0
  for at = 3, #ARGV, size do
    count = count + 1
    names[count] = ARGV[at]
  end
  for i = 1, count, 4000 do
    local part = call('HMGET', TERMS, unpack(names, i, math.min(i + 3999, count)))
    for j = 1, #part do terms[i + j - 1] = part[j] end
  end
  return names, terms
end

local function data_of(name, term) return has_data(term) and call('HGET', DATA, name) end

local function next_token() return math.max((tonumber(call('GET', FLOOR)) or 0) + 1, now) end
local function raise_floor(token) call('SET', FLOOR, digits(token)) end

-- Forgets what nobody has held for this long, so many at most, and says how many.
local function sweep(idle, most)
  local names = call('ZRANGEBYSCORE', EXPIRIES, '-inf', '(' .. digits(now - idle), 'LIMIT', 0, most)
  pieces('HDEL', TERMS, names)
  pieces('HDEL', DATA, names)
  pieces('ZREM', NAMES, names)
  pieces('ZREM', EXPIRIES, names)
  return #names
end
";

/// Entries: name, lease, TTL, grace in sixteen digits, whether it waits, owner, data. Answers: the token, or the term that
/// is in the way with its data. All grants of a batch have one token: it must rise for each name, and no name is here
/// twice.
pub(in crate::store) const CLAIM: &str = r"
local names, olds = entries(7)
local token, granted = next_token(), false
local token_text, now_text = digits(token), digits(now)
local answers, terms, data, no_data, listed, expiries = {now}, {}, {}, {}, {}, {}
local written, kept = 0, 0
local at = 3
for i, name in ipairs(names) do
  local lease, ttl, grace, waits, owner = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  local attached, old = ARGV[at + 6], olds[i]
  local same = old and sub(old, 1, 32) == lease
  at = at + 7
  if old and not same and closed_until(old) > now then
    answers[i + 1] = {old, data_of(name, old)}
    if waits == '1' and not is_awaited(old) then
      terms[written + 1], terms[written + 2] = name, sub(old, 1, AWAITED - 1) .. 'w' .. sub(old, AWAITED + 1)
      written = written + 2
    end
  else
    local first, current, acquired, number_now = token_text, token_text, now_text, token
    if same and is_live(old) then
      first, current, acquired, number_now = text(old, FIRST), text(old, TOKEN), text(old, ACQUIRED), number(old, TOKEN)
    else
      granted = true
    end
    answers[i + 1] = number_now
    local flags = (old and is_awaited(old) and 'w' or '-') .. (attached ~= '' and 'd' or '-')
    terms[written + 1], terms[written + 2] = name, lease .. ' ' .. first .. ' ' .. current .. ' ' .. after(ttl) .. ' ' ..
      acquired .. ' ' .. now_text .. ' ' .. grace .. ' ' .. flags .. ' ' .. owner
    written = written + 2
    listed[kept + 1], listed[kept + 2] = 0, name
    expiries[kept + 1], expiries[kept + 2] = after(ttl + grace), name
    kept = kept + 2
    if attached ~= '' then
      data[#data + 1] = name
      data[#data + 1] = attached
    elseif old and has_data(old) then
      no_data[#no_data + 1] = name
    end
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
local now_text, token, token_text = digits(now), nil, nil
local answers, terms, expiries, kept = {now}, {}, {}, 0
local at = 3
for i, name in ipairs(names) do
  local lease, first, ttl, rotates, old = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4] == '1', olds[i]
  at = at + 5
  if old and sub(old, 1, 32) == lease and text(old, FIRST) == first and is_live(old) then
    local current = text(old, TOKEN)
    if rotates then
      token = token or next_token()
      token_text = token_text or digits(token)
      current = token_text
    end
    answers[i + 1] = tonumber(current)
    terms[kept + 1], terms[kept + 2] = name, sub(old, 1, TOKEN - 1) .. current .. ' ' .. after(ttl) .. ' ' ..
      text(old, ACQUIRED) .. ' ' .. now_text .. sub(old, GRACE - 1)
    expiries[kept + 1], expiries[kept + 2] = after(ttl + text(old, GRACE)), name
    kept = kept + 2
  else
    answers[i + 1] = {old, old and data_of(name, old), call('HGET', EVICTED, name)}
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
local at = 3
for i, name in ipairs(names) do
  local lease, first, by, old = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], olds[i]
  at = at + 4
  answers[i + 1] = 0
  if old and sub(old, 1, 32) == lease and (first == '' or text(old, FIRST) <= first) and is_live(old) then
    answers[i + 1] = 1
    ended[#ended + 1] = name
    if has_data(old) then no_data[#no_data + 1] = name end
    if is_awaited(old) then awaited[#awaited + 1] = name end
    if by ~= '' then
      marks[#marks + 1] = name
      marks[#marks + 1] = sub(old, 1, TOKEN - 1) .. digits(now) .. ' ' .. by
    end
  end
end
pieces('HSET', EVICTED, marks)
pieces('HDEL', TERMS, ended)
pieces('HDEL', DATA, no_data)
pieces('ZREM', NAMES, ended)
pieces('ZREM', EXPIRIES, ended)
for _, name in ipairs(awaited) do call('PUBLISH', ARGV[2], name) end
return answers
";

/// From, to, how many. Answers: name, term and data of each.
pub(in crate::store) const LIST: &str = r"
local names = call('ZRANGEBYLEX', NAMES, ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
local answers = {now}
for _, name in ipairs(names) do
  local term = call('HGET', TERMS, name)
  if term then answers[#answers + 1] = {name, term, data_of(name, term)} end
end
return answers
";

/// For how long nobody has held them, how many at most. Answers: how many were forgotten. Marks of evictions go after the
/// same time.
pub(in crate::store) const PRUNE: &str = r"
local idle = tonumber(ARGV[3])
local marks, old_marks = call('HGETALL', EVICTED), {}
for i = 1, #marks, 2 do
  if number(marks[i + 1], TOKEN) < now - idle then old_marks[#old_marks + 1] = marks[i] end
end
pieces('HDEL', EVICTED, old_marks)
return {now, sweep(idle, tonumber(ARGV[4]))}
";

/// Writes the floor if it is missing, and tries every command that the others need on every key, with a name that
/// nobody can have: so a missing right, a read-only server or something else under these keys is found now.
pub(in crate::store) const OPEN: &str = r"
call('SET', FLOOR, digits(0), 'NX')
call('GET', FLOOR)
for _, key in ipairs({TERMS, DATA, EVICTED}) do
  call('HSET', key, '', '')
  call('HGET', key, '')
  call('HMGET', key, '')
  call('HDEL', key, '')
end
for _, key in ipairs({NAMES, EXPIRIES}) do
  call('ZADD', key, 0, '')
  call('ZREM', key, '')
end
call('ZRANGEBYLEX', NAMES, '-', '+', 'LIMIT', 0, 1)
call('ZRANGEBYSCORE', EXPIRIES, '-inf', '(0', 'LIMIT', 0, 1)
call('PUBLISH', ARGV[2], '')
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
