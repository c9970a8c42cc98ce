"""Reads the tensors in `tf_model.h5`, which the TensorFlow models of Hugging Face saved.

The names become those of the PyTorch models, by the rule of Hugging Face's own conversion:

    roformer/tf_ro_former_model/roformer/encoder/layer_._0/attention/self/query/kernel:0
    roformer.encoder.layer.0.attention.self.query.weight

Reference: `modeling_tf_roformer.py` and `modeling_tf_pytorch_utils.py` of transformers 4.
"""

import h5py
import numpy as np

from roformer_tf.checkpoint.damage import largest_size, open_h5

_LAST = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}


class TensorFlowTensors:
    """The tensors of one `.h5` file, read one at a time.

    Args:
        file: Path.

    Attributes:
        names: list of str. Sorted names of the PyTorch model.

    Raises:
        ValueError: If the file is damaged, or two copies of a tensor differ.
    """

    def __init__(self, file):
        self._file, self._paths, self._about = file, {}, {}
        with open_h5(file) as stored:
            paths = []
            stored.visititems(lambda path, node: paths.append((path, node)))
            for path, node in sorted(paths, key=lambda item: item[0], reverse=True):
                if isinstance(node, h5py.Dataset):
                    self._add(path, node, stored)
        self.names = sorted(self._paths)

    def _add(self, path, node, stored):
        if node.external or node.is_virtual:
            raise ValueError(
                f"{self._file} is refused: {path} is stored in another file, which need not be one "
                "of weights. Copy the model again from where it was saved."
            )
        # HDF5 stores no numbers that were never written, and compresses
        if node.nbytes > largest_size(self._file.stat().st_size):
            raise ValueError(
                f"{self._file} is refused: {path} has {node.nbytes:,} bytes, far more than the file, "
                "and would fill the memory. Copy the model again from where it was saved."
            )
        name = torch_name(path)
        about = node.shape, node.dtype
        if name in self._paths:
            # the group of the output head repeats the embeddings that it shares
            first = stored[self._paths[name]]
            same = self._about[name] == about and np.array_equal(first[()], node[()])
            if not same:
                raise ValueError(
                    f"{self._file} is damaged: {path} and {self._paths[name]} are the same tensor, "
                    "but their numbers differ. Copy it again from where it was saved."
                )
            return
        self._paths[name], self._about[name] = path, about

    def describe(self, name):
        """Returns shape and dtype of a tensor, in the orientation of PyTorch."""
        shape, dtype = self._about[name]
        return (shape[::-1] if self._is_kernel(name) else shape), dtype

    def read(self, name):
        """Returns a tensor in the orientation of PyTorch."""
        with open_h5(self._file) as stored:
            array = stored[self._paths[name]][()]
        return array.T if self._is_kernel(name) else array

    def _is_kernel(self, name):
        return self._paths[name].endswith(("/kernel:0", "/kernel"))


def torch_name(path):
    """Returns the name in the PyTorch model of a variable of the TensorFlow model.

    >>> torch_name("mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/bias:0")
    'cls.predictions.bias'
    >>> torch_name("roformer/encoder/layer_._0/output/LayerNorm/gamma:0")
    'roformer.encoder.layer.0.output.LayerNorm.weight'
    """
    parts = path.split(":")[0].split("/")
    tops = [i for i, part in enumerate(parts) if part == "roformer" or "___" in part]
    parts = parts[tops[-1] if tops else 0 :]  # a layer's group, and the model's own name
    parts = [part.split("___")[-1].replace("_._", ".") for part in parts]
    return ".".join([*parts[:-1], _LAST.get(parts[-1], parts[-1])])
