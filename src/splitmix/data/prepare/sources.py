"""Where the original files come from, and what may be done with them. Checksums are those that others publish.

A file without a URL here has no address that we know to last: its page says how to get it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Original:
    """A file as its authors distribute it; `path` is its place below the folder `originals` of the data root."""

    path: str
    page: str
    url: str = ""
    md5: str = ""
    unpacked: str = ""  # a folder that may be there in its stead


def _offered(folder: str, page: str, address: str, md5: dict[str, str]) -> tuple[Original, ...]:
    """Files that lie side by side at one address."""
    return tuple(Original(f"{folder}/{name}", page, f"{address}/{name}", known) for name, known in md5.items())


MNIST = _offered(
    "mnist",
    "http://yann.lecun.com/exdb/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
USPS = _offered(
    "usps",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass",
    {"usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197", "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118"},
)
SVHN = _offered(
    "svhn",
    "http://ufldl.stanford.edu/housenumbers/",
    "http://ufldl.stanford.edu/housenumbers",
    {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
)
GANIN_PAGE = "http://yaroslav.ganin.net/"
SYNTH = tuple(
    Original(f"synthdigits/synth_{part}_32x32.mat", f"{GANIN_PAGE} (SynthDigits.zip, unpacked)")
    for part in ("train", "test")
)
MNIST_M = tuple(
    Original(f"mnist_m/mnist_m_{part}_labels.txt", f"{GANIN_PAGE} (mnist_m.tar.gz, unpacked)")
    for part in ("train", "test")
)


def fedbn_originals(folder: str) -> tuple[Original, ...]:
    """One domain of FedBN's prepared digits: ten parts to train on, and a test part."""
    page = "https://github.com/med-air/FedBN (digit_dataset.zip, unpacked)"
    parts = [f"partitions/train_part{number}.pkl" for number in range(10)]
    return tuple(Original(f"fedbn/{folder}/{name}", page) for name in (*parts, "test.pkl"))


def _cifar(version: str, unpacked: str, md5: str) -> Original:
    home, name = "https://www.cs.toronto.edu/~kriz", f"cifar-10-{version}.tar.gz"
    return Original(f"cifar10/{name}", f"{home}/cifar.html", f"{home}/{name}", md5, f"cifar10/{unpacked}")


CIFAR_BINARY = _cifar("binary", "cifar-10-batches-bin", "c32a1d4ab5d03f1284b67883e8d87530")
CIFAR_PYTHON = _cifar("python", "cifar-10-batches-py", "c58f30108f718f92721af3b95e74349a")

_DOMAINNET_MD5 = """
real dcc47055e8935767784b7162e7c7cca6 8ebf02c2075fadd564705f0dc7cd6291 6098816791c3ebed543c71ffa11b9054
clipart cd0d8f2d77a4e181449b78ed62bccf1e b4349693a7f9c05c53955725c47ed6cb f5ddbcfd657a3acf9d0f7da10db22565
infograph 720380b86f9e6ab4805bb38b6bd135f8 379b50054f4ac2018dca4f89421b92d9 779626b50869edffe8ea6941c3755c71
painting 1ae32cdb4f98fe7ab5eb0a351768abfd 7db0e7ca73ad9982f6e1f7f3ef372c0a 232b35dc53f26d414686ae579e38d9b5
quickdraw bdc1b6f09f277da1a263389efe0c7a66 b732ced3939ac8efdd8c0a889dca56cc c1a828fdfe216fb109f1c0083a252c6f
sketch 658d8009644040ff7ce30bb2e820850f 1233bd18aa9a8a200bf4cecf1c34ef3e d8a222e4672cfd585298aa14d02ea441
"""  # of the pictures, of the list to train on, of the list to test on


def _domainnet(domain: str, pictures: str, train: str, test: str) -> tuple[Original, ...]:
    page, home = "http://ai.bu.edu/M3SDA/ (the cleaned version)", "http://csr.bu.edu/ftp/visda/2019/multi-source"
    cleaned = "/groundtruth" if domain in ("clipart", "painting") else ""  # these were cleaned again later
    lists = _offered(
        "domainnet", page, f"{home}/domainnet/txt", {f"{domain}_train.txt": train, f"{domain}_test.txt": test}
    )
    packed = f"{home}{cleaned}/{domain}.zip"
    return (Original(f"domainnet/{domain}.zip", page, packed, pictures, f"domainnet/{domain}"), *lists)


PICTURES = {  # by the name of the set
    "domainnet": tuple(file for line in _DOMAINNET_MD5.split("\n")[1:-1] for file in _domainnet(*line.split())),
    "office-caltech10": (
        Original("office-caltech10", "https://github.com/med-air/FedBN (office_caltech_10_dataset.zip, unpacked)"),
    ),
    "pacs": (Original("pacs", "https://dali-dl.github.io/project_iccv2017.html (unpacked)"),),
}

TERMS = {
    "mnist": "no licence stated by the authors; often cited as CC BY-SA 3.0",
    "usps": "no licence stated",
    "svhn": "for non-commercial use only (its authors' page)",
    "synthdigits": "no licence on the author's page; a public copy says CC BY 4.0",
    "mnist_m": "no licence stated; made from MNIST and photographs of BSDS500 (research use)",
    "cifar10": "no licence stated; its author asks for a citation (Krizhevsky 2009)",
    "domainnet": "a fair-use notice: for non-commercial research and education; the pictures belong to their makers",
    "office-caltech10": "no licence stated; pictures of Office-31 and Caltech-256, for research",
    "pacs": "no licence stated; pictures of Caltech-256, Sketchy, TU-Berlin and Google Images, for research",
}
