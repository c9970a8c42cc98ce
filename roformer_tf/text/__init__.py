"""Strings to token ids, in TensorFlow ops only."""

from roformer_tf.checkpoint.vocabulary import load_vocabulary, simplify_vocabulary
from roformer_tf.text.graph_detokenizer import GraphDetokenizer
from roformer_tf.text.graph_tokenizer import GraphTokenizer
from roformer_tf.text.pair_packer import PairPacker
from roformer_tf.text.random_masker import RandomMasker
from roformer_tf.text.roformer_tokenizer import RoFormerTokenizer
from roformer_tf.text.segmentation_dictionary import SegmentationDictionary
from roformer_tf.text.sentence_piece_tokenizer import (
    RoFormerSentencePieceTokenizer,
    train_sentencepiece,
)
from roformer_tf.text.text_segmentate import text_segmentate
from roformer_tf.text.token_batching import token_batches

__all__ = [
    "GraphDetokenizer",
    "GraphTokenizer",
    "PairPacker",
    "RandomMasker",
    "RoFormerSentencePieceTokenizer",
    "RoFormerTokenizer",
    "SegmentationDictionary",
    "load_vocabulary",
    "simplify_vocabulary",
    "text_segmentate",
    "token_batches",
    "train_sentencepiece",
]
