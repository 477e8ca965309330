// The picture: drawn by hand, taken from the examples or from a file; always the pixels that the net will see.

const PEN = 0.15; // thickness of a stroke, as a share of the height of the digit
const FRAME = 22 / 28; // a drawn digit is as high as those of the domain "pen"
const FINE = 4; // drawn this many times larger, then averaged, for smooth edges

/** Pixels (height x width x 3 bytes) with what is known about them. */
export function blank([height, width]) {
  return { height, width, data: new Uint8ClampedArray(height * width * 3), label: null, source: "pad" };
}

/** Take the first three bytes of every four. */
export function fromRgba(rgba, height, width, about) {
  const picture = { ...blank([height, width]), ...about };
  for (let i = 0; i < height * width; i++) for (let c = 0; c < 3; c++) picture.data[3 * i + c] = rgba[4 * i + c];
  return picture;
}

/** Paint pixels on a canvas of their own size. */
export function paint(canvas, picture) {
  canvas.width = picture.width;
  canvas.height = picture.height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(picture.width, picture.height);
  for (let i = 0; i < picture.width * picture.height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = picture.data[3 * i + c];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** How two pictures differ: grey is no change, and changes are made `times` as strong. */
export function difference(one, other, times) {
  const data = one.data.map((value, i) => 128 + times * (other.data[i] - value));
  return { ...one, data };
}

/** Decode a picture file and take its middle, as the server does. */
export async function fromFile(blob, [height, width], about = { label: null, source: "file" }) {
  const bitmap = await createImageBitmap(blob);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const scale = Math.max(width / bitmap.width, height / bitmap.height);
  const [w, h] = [bitmap.width * scale, bitmap.height * scale];
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, (width - w) / 2, (height - h) / 2, w, h);
  return fromRgba(context.getImageData(0, 0, width, height).data, height, width, about);
}

/** A canvas to draw on with finger, pen or mouse; `changed` gets the pixels after every stroke, null once it is empty. */
export class Pad {
  constructor(canvas, size, changed) {
    Object.assign(this, { canvas, size, changed, strokes: [], drawing: false });
    this.context = canvas.getContext("2d");
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (this.drawing = false));
  }

  /** Show a picture that was not drawn here; the next stroke begins a new drawing. */
  show(picture) {
    this.strokes = [];
    const small = new OffscreenCanvas(1, 1);
    paint(small, picture);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
  }

  clear() {
    this.strokes = [];
    this.redraw();
    this.changed(null);
  }

  begin(event) {
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.drawing = true;
    this.strokes.push([this.place(event)]);
    this.redraw();
    this.changed(this.pixels());
  }

  move(event) {
    if (!this.drawing) return;
    const between = event.getCoalescedEvents?.() ?? [];
    this.strokes.at(-1).push(...(between.length ? between : [event]).map((each) => this.place(each)));
    this.redraw();
    this.changed(this.pixels());
  }

  /** Where the pointer is, in 0..1. */
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  redraw() {
    const { width, height } = this.canvas;
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, width, height);
    stroke(this.context, this.strokes, ([x, y]) => [x * width, y * height], PEN * FRAME * height);
  }

  /** The drawing moved to the middle and made as high as the digits that the net has learnt. */
  pixels() {
    const [height, width] = this.size;
    const points = this.strokes.flat();
    const [left, top] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
    const [right, bottom] = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])));
    const span = Math.max(bottom - top, right - left, 0.25); // a dot stays a dot
    const digit = FRAME * (1 - PEN) * height * FINE;
    const canvas = new OffscreenCanvas(width * FINE, height * FINE);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    const move = ([x, y]) => [
      canvas.width / 2 + ((x - (left + right) / 2) / span) * digit,
      canvas.height / 2 + ((y - (top + bottom) / 2) / span) * digit,
    ];
    stroke(context, this.strokes, move, PEN * FRAME * height * FINE);
    return this.averaged(context.getImageData(0, 0, canvas.width, canvas.height).data);
  }

  averaged(rgba) {
    const [height, width] = this.size;
    const picture = blank(this.size);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        let sum = 0;
        for (let dy = 0; dy < FINE; dy++) {
          for (let dx = 0; dx < FINE; dx++) sum += rgba[4 * ((y * FINE + dy) * width * FINE + x * FINE + dx)];
        }
        picture.data.fill(sum / FINE ** 2, 3 * (y * width + x), 3 * (y * width + x) + 3);
      }
    }
    return picture;
  }
}

function stroke(context, strokes, move, thickness) {
  Object.assign(context, { strokeStyle: "#fff", lineWidth: thickness, lineCap: "round", lineJoin: "round" });
  for (const points of strokes) {
    context.beginPath();
    const [first, ...rest] = points.map(move);
    context.moveTo(...first);
    for (const point of rest.length ? rest : [[first[0] + 0.01, first[1]]]) context.lineTo(...point);
    context.stroke();
  }
}
