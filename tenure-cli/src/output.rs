//! What people and programs read: tables, relative times, JSON lines, and text that can't harm a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::RawValue;
use tenure::Record;
use tenure::store::url::redacted;
use unicode_width::UnicodeWidthStr;

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";
/// What stands between two columns.
const GAP: &str = "  ";

/// Writes an object as one line to standard output.
pub fn json_line(object: &impl Serialize) -> io::Result<()> {
    json_lines([object])
}

/// Writes objects to standard output, one a line.
pub fn json_lines(objects: impl IntoIterator<Item = impl Serialize>) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for object in objects {
        serde_json::to_writer(&mut out, &object)?;
        writeln!(out)?;
    }
    out.flush()
}

/// Whether to colour what goes there: on a terminal, unless `NO_COLOR` is set.
pub fn colour(out: &impl IsTerminal) -> bool {
    out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Rows in aligned columns; the last column is as wide as it likes.
///
/// Rows may come in several goes: widths then only grow, and nothing is kept in memory.
#[derive(Debug)]
pub struct Table<const COLUMNS: usize> {
    widths: [usize; COLUMNS],
    head: Option<[&'static str; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// A table with these heads, printed above the first row.
    pub fn new(head: [&'static str; COLUMNS]) -> Self {
        Self { widths: head.map(UnicodeWidthStr::width), head: Some(head) }
    }

    /// Prints some rows; no rows, no head.
    pub fn print(&mut self, rows: &[[String; COLUMNS]]) -> io::Result<()> {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        if let Some(head) = self.head.take_if(|_| !rows.is_empty()) {
            let (bold, plain) = if colour(out.get_ref()) { (BOLD, PLAIN) } else { ("", "") };
            writeln!(out, "{bold}{}{plain}", self.line(&head.map(String::from)))?;
        }
        rows.iter().try_for_each(|row| writeln!(out, "{}", self.line(row)))?;
        out.flush()
    }

    fn line(&self, row: &[String; COLUMNS]) -> String {
        let padded = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width - cell.width()));
        let cells: Vec<String> = row.iter().zip(&self.widths).map(padded).collect();
        cells.join(GAP).trim_end().into()
    }
}

/// A record as JSON shows it: times in UTC, by the store's clock; durations in milliseconds.
#[derive(Debug, Serialize)]
pub struct RecordJson<'a> {
    name: &'a str,
    state: &'static str,
    owner: &'a str,
    token: u64,
    acquired_at: String,
    renewed_at: String,
    expires_at: String,
    held_ms: u64,
    left_ms: u64,
    grace_ms: u64,
    data: Option<Box<RawValue>>,
}

impl<'a> From<&'a Record> for RecordJson<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            name: record.name.as_str(),
            state: state(record),
            owner: &record.owner,
            token: record.token.0,
            acquired_at: utc(record.acquired_at),
            renewed_at: utc(record.renewed_at),
            expires_at: utc(record.expires_at),
            held_ms: millis(record.held_for),
            left_ms: millis(record.remaining),
            grace_ms: millis(record.grace),
            data: record.data.as_deref().map(raw),
        }
    }
}

/// How a record stands, in a word.
pub fn state(record: &Record) -> &'static str {
    if record.is_live() { "held" } else { "expired" }
}

/// The holder's data as a value on one line; as text, should it not be JSON.
fn raw(data: &str) -> Box<RawValue> {
    RawValue::from_string(compact(data))
        .or_else(|_| serde_json::value::to_raw_value(data))
        .unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// JSON without the white space between its parts.
pub fn compact(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let mut keep = |c: char| {
        let kept = in_string || !matches!(c, ' ' | '\t' | '\r' | '\n');
        in_string ^= c == '"' && !escaped;
        escaped = in_string && c == '\\' && !escaped;
        kept
    };
    json.chars().filter(|c| keep(*c)).collect()
}

/// Whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A moment as `2026-11-15T20:33:01.123Z`.
pub fn utc(time: SystemTime) -> String {
    // The formatter knows the years 1970 to 9999; a store with another clock must not end us.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

/// A duration in its two largest units: `50ms`, `1.5s`, `12s`, `3m 4s`, `2d 5h`.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, one: &str, small: u64, other: &str| match small {
        0 => format!("{large}{one}"),
        _ => format!("{large}{one} {small}{other}"),
    };
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..10 => format!("{:.1}s", (time.as_secs_f64() * 10.0).floor() / 10.0),
        10..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

/// Text with its control characters written out: a record is anybody's, and a terminal obeys.
pub fn printable(text: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(show).collect()
}

/// Text on one line.
pub fn one_line(text: &str) -> String {
    printable(&text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" "))
}

/// Text at most `width` columns wide.
pub fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut end = String::new();
    for c in text.chars() {
        if end.width() + UnicodeWidthStr::width(c.encode_utf8(&mut [0; 4]) as &str) >= width {
            break;
        }
        end.push(c);
    }
    end + "…"
}

/// Text in which a URL's password is starred out, wherever it came from: a misplaced argument, a driver's message.
pub fn without_passwords(text: &str) -> String {
    let Some((front, rest)) = text.split_once("://") else { return text.into() };
    let (url, after) = rest.split_at(rest.find([' ', '\'', '"']).unwrap_or(rest.len()));
    format!("{front}{}{}", redacted(&format!("://{url}")), without_passwords(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let age = |millis| age(Duration::from_millis(millis));
        assert_eq!(age(50), "50ms");
        assert_eq!(age(1_590), "1.5s");
        assert_eq!(age(9_990), "9.9s");
        assert_eq!(age(12_900), "12s");
        assert_eq!(age(184_000), "3m 4s");
        assert_eq!(age(180_000), "3m");
        assert_eq!(age(7_500_000), "2h 5m");
        assert_eq!(age(190_800_000), "2d 5h");
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}ü"), "a\\u{1b}[2Jb\\u{9b}ü");
        assert_eq!(one_line("error:\n  <NAME>\n\n"), "error: <NAME>");
    }

    #[test]
    fn json_is_put_on_one_line_and_its_strings_are_left_alone() {
        assert_eq!(compact("{ \"a b\" : [1,\n 2], \"q\\\" \\\\\" : \" \" }"), "{\"a b\":[1,2],\"q\\\" \\\\\":\" \"}");
        assert_eq!(raw("[1,\n2]").get(), "[1,2]");
        assert_eq!(raw("no json").get(), "\"no json\"");
    }

    #[test]
    fn wide_text_is_shortened_by_its_width() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abcde…");
        assert_eq!(shortened("日本語日本語", 6), "日本…");
    }

    #[test]
    fn passwords_are_starred_out() {
        assert_eq!(
            without_passwords("no command 'pg://me:a:b@c@host/db' and redis://:x@h, http://plain/"),
            "no command 'pg://me:***@host/db' and redis://:***@h, http://plain/"
        );
        assert_eq!(without_passwords("pg://h/d?a=1&password=x y"), "pg://h/d?a=***&password=*** y");
    }

    #[test]
    fn any_clock_can_be_shown() {
        assert_eq!(utc(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        assert!(utc(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)).starts_with("9999-"));
    }
}
