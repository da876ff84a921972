"""dlio's own environment variables, and what each is for; a test keeps the table complete."""

VARIABLES = {
    "DLIO_STAGED": "folders that hold staged copies, separated by `:`; loaders and `dlio.resolve` search them first.",
    "DLIO_LAUNCHER": "the launcher that sets rank and world size, if dlio finds several and chooses the wrong one; "
    "`single` for a single process.",
    "DLIO_INTERFACE": "the network interface (`eth0`) or address that nodes of a job listen on, in live staging and in "
    "broadcasts.",
    "DLIO_MEET": "a folder on a shared file system where the nodes of a job find each other "
    "(default: `~/.local/state/dlio`).",
    "DLIO_MAX_MANIFEST": "the most bytes that a manifest may have (default: `256MiB`).",
    "DLIO_RATES": "the file of measured rates that `dlio bench` writes, and `plan` and `stage` use "
    "(default: `~/.cache/dlio/rates.json`).",
    "DLIO_TRACE": "a file for the spans of reading, decoding, waiting and staging, in Chrome's trace format; "
    "`%h` stands for the host, `%p` for the process.",
    "DLIO_DATASET": "the data set that `dlio.loaders.dlio_benchmark` reads (default: `data_folder/train`).",
    "DLIO_DECODE": "the side in pixels of the square that `dlio.loaders.dlio_benchmark` resizes images to "
    "(default: images stay encoded).",
    "DLIO_MAX_SAMPLE": "the most bytes that an encoded image may have (default: `1GiB`).",
}
