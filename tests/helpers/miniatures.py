"""MIRFlickr-25K and NUS-WIDE as they are handed out, small: archives of the same files and lines."""

import io
import zipfile

import numpy as np
from PIL import Image

COLOURS = [(220, 40, 30), (40, 180, 60), (30, 60, 210), (240, 240, 235)]
WORDS = [["red", "rose"], ["green", "forest"], ["blue", "sea"], ["white", "snow"]]
#: The annotations of MIRFlickr: 24 that an image may show, 14 that it shows prominently.
POTENTIAL = (
    *(
        "animals",
        "baby",
        "bird",
        "car",
        "clouds",
        "dog",
        "female",
        "flower",
        "food",
        "indoor",
        "lake",
        "male",
    ),
    *("night", "people", "plant_life", "portrait", "river", "sea", "sky", "structures", "sunset"),
    *("transport", "tree", "water"),
)
RELEVANT = (
    *("baby_r1", "bird_r1", "car_r1", "clouds_r1", "dog_r1", "female_r1", "flower_r1", "male_r1"),
    *("night_r1", "people_r1", "portrait_r1", "river_r1", "sea_r1", "tree_r1"),
)
#: Some of the 81 concepts of NUS-WIDE: 21 are the most frequent.
CONCEPTS = (
    *(
        "airport",
        "animal",
        "beach",
        "bear",
        "birds",
        "boats",
        "book",
        "bridge",
        "buildings",
        "cars",
        "castle",
    ),
    *(
        "cat",
        "cityscape",
        "clouds",
        "computer",
        "coral",
        "cow",
        "dancing",
        "dog",
        "earthquake",
        "elk",
        "fire",
    ),
    *("fish", "flags"),
)


def jpeg(colour, rng):
    """A picture of about one colour."""
    pixels = np.array(COLOURS[colour]) + rng.normal(scale=25, size=(18, 20, 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "JPEG")
    return out.getvalue()


def words(colour, rng):
    """Tags as typed: one or two of the colour's, sometimes one that hardly anybody else typed, or none."""
    if rng.random() < 0.05:
        return []
    chosen = WORDS[colour][: 1 + rng.integers(2)]
    return [*chosen, f"rare{rng.integers(200)}"] if rng.random() < 0.3 else chosen


def labels(topics, rng):
    """What people said of each image: mostly its topic."""
    return np.where(rng.random(len(topics)) < 0.3, rng.integers(4, size=len(topics)), topics)


def crlf(lines):
    return "".join(f"{line}\r\n" for line in lines).encode()


def vectors(path, f=8):
    """Word vectors of the usual words, as GloVe's text."""
    rng = np.random.default_rng(5)
    known = [word for pair in WORDS for word in pair]
    path.write_text("".join(f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=f))}\n" for word in known))


class MirFlickr:
    """`mirflickr25k.zip` and `mirflickr25k_annotations_v080.zip` in a folder, and what is in them."""

    def __init__(self, folder, n, seed=0):
        rng = np.random.default_rng(seed)
        self.topics = rng.integers(4, size=n)
        self.tags = [words(topic, rng) for topic in self.topics]
        self.pictures = [jpeg(topic, rng) for topic in self.topics]
        with zipfile.ZipFile(folder / "mirflickr25k.zip", "w") as archive:
            archive.writestr("mirflickr/doc/common_tags.txt", crlf(["sea 60", "rose 55"]))
            archive.writestr("mirflickr/README.txt", crlf(["MIRFLICKR-25000"]))
            for i, (picture, tags) in enumerate(zip(self.pictures, self.tags, strict=True), start=1):
                archive.writestr(f"mirflickr/im{i}.jpg", picture)
                archive.writestr(f"mirflickr/meta/tags/tags{i}.txt", crlf(tags))
                archive.writestr(f"mirflickr/meta/tags_raw/tags{i}.txt", crlf(map(str.title, tags)))
                archive.writestr(f"mirflickr/meta/exif/exif{i}.txt", crlf(["-Make", "Canon"]))
        self.labels = np.zeros((n, 24), bool)
        self.labels[np.arange(n), labels(self.topics, rng)] = True
        with zipfile.ZipFile(folder / "mirflickr25k_annotations_v080.zip", "w") as archive:
            archive.writestr("README.txt", crlf(["annotations v0.80"]))
            for column, name in enumerate(POTENTIAL):
                archive.writestr(f"{name}.txt", crlf(np.flatnonzero(self.labels[:, column]) + 1))
            for name in RELEVANT:
                archive.writestr(f"{name}.txt", crlf([1]))


class NusWide:
    """`ImageList.zip`, `NUS_WID_Tags.zip`, `Groundtruth.zip` and pictures in `Flickr/`, and what is in them.

    `flat`: the archives hold files without a folder of their name. Some pictures are gone, and one is broken.
    """

    def __init__(self, folder, n, *, flat=False, seed=0):
        rng = np.random.default_rng(seed)
        self.topics = rng.integers(4, size=n)
        self.tags = [words(topic, rng) for topic in self.topics]
        self.names = [f"{'actor' if i % 2 else 'zoo'}/{i:04d}_{10**9 + 7 * i}.jpg" for i in range(n)]
        self.pictures = [jpeg(topic, rng) for topic in self.topics]
        self.gone, self.broken = {5, 31, 40}, 37
        for i, (name, picture) in enumerate(zip(self.names, self.pictures, strict=True)):
            path = folder / "Flickr" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if i not in self.gone:
                path.write_bytes(picture[:60] if i == self.broken else picture)
        self.labels = rng.random((n, len(CONCEPTS))) < 0.02
        self.labels[:, :3] = False  # the rarest: no part of the 21
        self.labels[np.arange(n), 3 + labels(self.topics, rng)] = True
        self.labels[:20] = False  # images without any label
        train = np.sort(rng.permutation(n)[: n // 2])
        parts = {"Train": train, "Test": np.setdiff1d(np.arange(n), train)}
        top = {name: "" if flat else f"{name}/" for name in ("ImageList", "NUS_WID_Tags", "Groundtruth")}
        with zipfile.ZipFile(folder / "ImageList.zip", "w") as archive:
            windows = [name.replace("/", "\\") for name in self.names]
            archive.writestr(f"{top['ImageList']}Imagelist.txt", crlf(windows))
            for part, places in parts.items():
                names = [windows[place] for place in places]
                archive.writestr(f"{top['ImageList']}{part}Imagelist.txt", crlf(names))
        with zipfile.ZipFile(folder / "NUS_WID_Tags.zip", "w") as archive:
            lines = [f"{10**9 + 7 * i}      {' '.join(tags)} " for i, tags in enumerate(self.tags)]
            archive.writestr(f"{top['NUS_WID_Tags']}All_Tags.txt", crlf(lines))
            archive.writestr(f"{top['NUS_WID_Tags']}Final_Tag_List.txt", crlf(["sea", "rose"]))
        with zipfile.ZipFile(folder / "Groundtruth.zip", "w") as archive:
            for column, name in enumerate(CONCEPTS):
                marks = self.labels[:, column].astype(int)
                archive.writestr(f"{top['Groundtruth']}AllLabels/Labels_{name}.txt", crlf(marks))
                for part, places in parts.items():
                    file = f"{top['Groundtruth']}TrainTestLabels/Labels_{name}_{part}.txt"
                    archive.writestr(file, crlf(marks[places]))
