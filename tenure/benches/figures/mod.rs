//! How figures are told.

/// The figure in the middle.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The median, and the range.
pub struct Spread(pub Vec<f64>);

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (least, most) =
            (self.0.iter().copied().fold(f64::MAX, f64::min), self.0.iter().copied().fold(0.0, f64::max));
        let digits = if least < 100.0 { 1 } else { 0 };
        write!(f, "{:.digits$} ({least:.digits$} to {most:.digits$})", median(&self.0))
    }
}
