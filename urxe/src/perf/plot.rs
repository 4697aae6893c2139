//! The figures as a drawing: by the size of messages, both axes logarithmic.

use std::path::Path;

use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::error::PerfError;
use super::load::Kind;
use super::report::{Report, Row, bytes, median};

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (900, 480);
/// Colours of the lines, in turn.
const COLOURS: [RGBColor; 6] =
    [BLUE, RED, RGBColor(0, 130, 60), MAGENTA, RGBColor(200, 120, 0), RGBColor(90, 90, 90)];

/// One line: points of size and value.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Draws a report: a chart of the latencies and one of the bandwidths, as far as there are any.
pub(super) fn draw(report: &Report, file: &Path) -> Result<(), PerfError> {
    let charts: Vec<_> = [Kind::Latency, Kind::Bandwidth]
        .into_iter()
        .map(|kind| (kind, lines(report, kind)))
        .filter(|(_, lines)| !lines.is_empty())
        .collect();
    let failed = |why: String| PerfError::Plot { file: file.display().to_string(), why };
    let size = (SIZE.0, SIZE.1 * charts.len().max(1) as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(error.to_string()))?;
    let areas = root.split_evenly((charts.len().max(1), 1));
    for (area, (kind, lines)) in areas.iter().zip(&charts) {
        chart(area, *kind, lines).map_err(|error| failed(error.to_string()))?;
    }
    root.present().map_err(|error| failed(error.to_string()))
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
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    };
    for row in report.rows.iter().filter(|row| row.load.kind == kind) {
        let (service, operation) = (row.load.service.name(), row.load.operation.name());
        let scale = if kind == Kind::Bandwidth { 1e9 } else { 1.0 };
        add(format!("{service} {operation}"), row.load.size, value(row) / scale);
        for (limit, values) in &row.limits {
            add(limit.name().to_owned(), row.load.size, median(values) / scale);
        }
    }
    lines
}

fn value(row: &Row) -> f64 {
    match row.load.kind {
        Kind::Latency => row.micros(),
        Kind::Bandwidth => row.bytes_per_second(),
    }
}

/// The least and the greatest of some values, a bit apart.
fn span(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    low / 1.3..high * 1.3
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    kind: Kind,
    lines: &[Line],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (title, unit) = match kind {
        Kind::Latency => ("Latency, median", "us"),
        Kind::Bandwidth => ("Bandwidth", "GB/s"),
    };
    let (sizes, values) = (span(points().map(|p| p.0)), span(points().map(|p| p.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes.log_scale(), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc(unit)
        .x_label_formatter(&|size| bytes(*size as u32))
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), &colour).point_size(3))?
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
