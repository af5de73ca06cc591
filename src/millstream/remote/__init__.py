"""Remote data: objects behind URLs, with local files in their place.

    store      what holds objects: an S3 bucket, a container, an HTTP server (`ObjectStore`)
    object     a remote file: a key in a store, with a size and an ETag (`ObjectFacts`)
    mirror     a directory of the cache that stands for a store: a sparse file for every object that
               was found, and the bytes that were fetched (`Mirror`)
    block      4 KiB of an object; a mirrored file knows which of its blocks it has (`BlockFile`)
    request    one range of one object, fetched with deadlines, retries and checks (`RequestPool`)

Layers above see local paths: `local_path` turns a URL into the path of a mirror. Formats parse
mirrored files as they parse others; `open_regular` fetches what they are about to read. Kernels
read mirrored files block by block. At a missing block they stop with a fault; the block is fetched,
and they start over. So the results never depend on what was fetched ahead; only the speed does.
"""
