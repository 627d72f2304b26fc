// Marks that a chart shows next to its curves.

function inside({ bbox }, x) {
  return x >= bbox.left && x <= bbox.left + bbox.width;
}

// Where the run was resumed, rolled back or failed, or got other weights: a thin line behind the curves.
function drawMarks(plot, clock) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of view.marks) {
    const x = plot.valToPos(along(clock, view.axis, [mark.step])[0], "x", true);
    if (!inside(plot, x)) continue;
    ctx.strokeStyle = colour(mark.bad ? "bad" : "faint", 0.7);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// NaN and infinities have no height: a small triangle at the edge says where they are.
function drawOdd(plot, lines) {
  const { ctx, bbox } = plot;
  const size = 5 * devicePixelRatio;
  ctx.save();
  for (const { curve, places, colour: name } of lines) {
    ctx.fillStyle = colour(name);
    curve.values.forEach((value, at) => {
      if (Number.isFinite(value)) return;
      const x = plot.valToPos(places[at], "x", true);
      if (!inside(plot, x)) return;
      const [edge, sign] = value === Infinity ? [bbox.top, 1] : [bbox.top + bbox.height, -1];
      ctx.beginPath();
      ctx.moveTo(x - size / 1.5, edge + sign * size);
      ctx.lineTo(x + size / 1.5, edge + sign * size);
      ctx.lineTo(x, edge);
      ctx.fill();
    });
  }
  ctx.restore();
}
