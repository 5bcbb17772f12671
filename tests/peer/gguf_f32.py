"""A GGUF written anew with every tensor as F32, for peers that run the same weights as assay."""
import gguf
import numpy as np


def write(source, path, arch, tensors):
    """The keys of source, and tensors: (name, array) in GGML's order of rows."""
    writer = gguf.GGUFWriter(path, arch)
    for field in gguf.GGUFReader(source).fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture",
                                                            "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, x in tensors:
        writer.add_tensor(name, np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
