//! The figures as a drawing: charts by the size of messages, both axes logarithmic, and one of how
//! long the messages took.

use std::ops::Range;
use std::path::Path;

use plotters::chart::{ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

use super::error::PerfError;
use super::histogram::{Class, Histogram};
use super::load::Kind;
use super::report::{Report, Row, bytes, median};

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (900, 480);
/// Colours of the lines, in turn.
const COLOURS: [RGBColor; 6] =
    [BLUE, RED, RGBColor(0, 130, 60), MAGENTA, RGBColor(200, 120, 0), RGBColor(90, 90, 90)];
/// The least time that a logarithmic axis shows, in microseconds.
const LEAST_MICROS: f64 = 0.01;

/// One line: points of size and value, or of time and share.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// What one chart shows.
enum Chart {
    /// Medians, by the size of messages.
    BySize(Kind, Vec<Line>),
    /// How many messages took how long.
    Histogram(Vec<Line>),
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

/// Draws a report: two charts of the latencies and one of the bandwidths, as far as there are any.
pub(super) fn draw(report: &Report, file: &Path) -> Result<(), PerfError> {
    let charts: Vec<_> = [
        Chart::BySize(Kind::Latency, lines(report, Kind::Latency)),
        Chart::Histogram(outlines(report)),
        Chart::BySize(Kind::Bandwidth, lines(report, Kind::Bandwidth)),
    ]
    .into_iter()
    .filter(|(Chart::BySize(_, lines) | Chart::Histogram(lines))| !lines.is_empty())
    .collect();
    let failed =
        |why: DrawError| PerfError::Plot { file: file.display().to_string(), why: why.to_string() };
    let size = (SIZE.0, SIZE.1 * charts.len().max(1) as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let areas = root.split_evenly((charts.len().max(1), 1));
    for (area, chart) in areas.iter().zip(&charts) {
        match chart {
            Chart::BySize(kind, lines) => by_size(area, *kind, lines),
            Chart::Histogram(lines) => histogram(area, lines),
        }
        .map_err(failed)?;
    }
    root.present().map_err(failed)
}

/// A line for each operation, and for each limit of it.
fn lines(report: &Report, kind: Kind) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: String, size: u32, value: f64| {
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        let point = (f64::from(size), value);
        match lines.iter_mut().find(|line| line.name == name) {
            // A limit is measured once for each operation.
            Some(line) if line.points.iter().any(|(size, _)| *size == point.0) => {}
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    };
    for row in report.rows.iter().filter(|row| row.load.kind == kind) {
        let scale = if kind == Kind::Bandwidth { 1e9 } else { 1.0 };
        add(name(row), row.load.size, value(row) / scale);
        for (limit, values) in &row.limits {
            add(limit.name().to_owned(), row.load.size, median(values) / scale);
        }
    }
    lines
}

fn name(row: &Row) -> String {
    format!("{} {}", row.load.service.name(), row.load.operation.name())
}

fn value(row: &Row) -> f64 {
    match row.load.kind {
        Kind::Latency => row.micros(),
        Kind::Bandwidth => row.bytes_per_second(),
    }
}

/// The outlines of the histograms: of all latencies, or of as many as there are colours, from the
/// smallest to the largest.
fn outlines(report: &Report) -> Vec<Line> {
    let rows: Vec<_> = report.rows.iter().filter(|row| row.load.kind == Kind::Latency).collect();
    let rows = rows.iter().filter(|row| !row.times.is_empty());
    let (count, most) = (rows.clone().count(), COLOURS.len());
    let is_shown = |index: usize| {
        // The first that stands for a colour: all of them where there are few.
        let colour = |index: usize| index * (most - 1) / (count - 1).max(1);
        count <= most || index == 0 || colour(index) != colour(index - 1)
    };
    let shown = rows.enumerate().filter(|(index, _)| is_shown(*index));
    shown
        .map(|(_, row)| Line {
            name: format!("{}, {}", name(row), bytes(row.load.size)),
            points: outline(&row.times),
        })
        .collect()
}

/// Around the bars: points of microseconds and of percent of the messages.
fn outline(times: &Histogram) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for Class { from, to, count } in times.classes() {
        let (from, to) = (from.max(LEAST_MICROS), to.max(LEAST_MICROS));
        let percent = 100.0 * times.share(count);
        match points.last() {
            Some(&(end, _)) if end >= from => {}
            Some(&(end, _)) => points.extend([(end, 0.0), (from, 0.0)]),
            None => points.push((from, 0.0)),
        }
        points.extend([(from, percent), (to, percent)]);
    }
    points.extend(points.last().map(|&(end, _)| (end, 0.0)));
    points
}

/// The least and the greatest of some values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// Whole decades around some values, so that the axis has labels.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = bounds(values);
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    10f64.powf(low)..10f64.powf(high.max(low + 1.0))
}

/// Some sizes, and a bit around them.
fn sizes(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = bounds(values);
    low / 1.3..high * 1.3
}

fn by_size(area: &Area<'_>, kind: Kind, lines: &[Line]) -> Result<(), DrawError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (title, unit) = match kind {
        Kind::Latency => ("Latency, median", "us"),
        Kind::Bandwidth => ("Bandwidth", "GB/s"),
    };
    let (sizes, values) = (sizes(points().map(|p| p.0)), decades(points().map(|p| p.1)));
    let mut chart =
        builder(area, title).build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc(unit)
        .x_labels(12)
        .x_label_formatter(&|size| bytes(size.round() as u32))
        .draw()?;
    draw_lines(&mut chart, lines, 3)
}

fn histogram(area: &Area<'_>, lines: &[Line]) -> Result<(), DrawError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (times, (_, most)) = (decades(points().map(|p| p.0)), bounds(points().map(|p| p.1)));
    let mut chart = builder(area, "Latency, how many messages took how long")
        .build_cartesian_2d(times.log_scale(), 0.0..most * 1.1)?;
    chart.configure_mesh().x_desc("us").y_desc("% of the messages").draw()?;
    draw_lines(&mut chart, lines, 0)
}

fn builder<'a, 'b>(area: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, ("sans-serif", 20)).margin(12).margin_right(40);
    builder.x_label_area_size(40).y_label_area_size(64);
    builder
}

/// The lines, with dots of so many pixels at their points, and what each is.
fn draw_lines<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    lines: &[Line],
    dots: u32,
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), &colour).point_size(dots))?
            .label(line.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_outline_falls_to_nothing_between_its_bars() {
        let mut times = Histogram::default();
        // Classes of 1 to 1.088 us and 4.096 to 4.608 us, roughly; three of four in the first.
        for nanos in [1030, 1040, 1050, 4200] {
            times.record(Duration::from_nanos(nanos));
        }
        let points = outline(&times);
        let heights: Vec<_> = points.iter().map(|point| point.1).collect();
        assert_eq!(heights, [0.0, 75.0, 75.0, 0.0, 0.0, 25.0, 25.0, 0.0]);
        assert!(points.is_sorted_by(|one, two| one.0 <= two.0), "{points:?}");
        assert_eq!(outline(&Histogram::default()), []);
    }

    #[test]
    fn an_axis_has_a_decade_at_least() {
        assert_eq!(decades([5.0, 7.0].into_iter()), 1.0..10.0);
        assert_eq!(decades([10.0].into_iter()), 10.0..100.0);
        assert_eq!(decades([0.5, 20.0].into_iter()), 0.1..100.0);
    }
}
