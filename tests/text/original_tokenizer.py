"""bert4keras' own tokenizer over jieba, for `Original.run_program`.

`run` answers requests `{name: (kind, mode, inputs)}`. Its `modes` by name have the arguments of
`make_tokenizer`: `word_level`, `lowercase`, `word_maxlen`, and `edits`, calls of methods of
`jieba.Tokenizer` that change its dictionary. Kinds and results (ragged ones as `.values` and `.lengths`):

    ids      texts                      -> ids
    offsets  texts                      -> starts, ends, ok (False where `rematch` raises)
    words    texts                      -> begins (1 for a token that begins a word)
    segmented  texts                    -> begins, ok: jieba's words, tokenized without jieba; ok is
                                           False if the whole text is tokenized otherwise
    encode   calls (keyword arguments)  -> ids, segments, ok
    decode   rows of ids                -> texts, None where `decode` raises

`start` are the first tokens of a simplified vocabulary; its answer, "simplified", is tokens, keep.
"""

import os

import numpy as np


def make_tokenizer(ids, frequencies, word_level, lowercase, word_maxlen=200, edits=()):
    import jieba
    from bert4keras.tokenizers import Tokenizer

    pre_tokenize = None
    if word_level:
        cutter = jieba.Tokenizer()
        cutter.FREQ, cutter.total = dict(frequencies[0]), frequencies[1]
        cutter.initialized = True
        for method, *arguments in edits:
            getattr(cutter, method)(*arguments)

        def pre_tokenize(text):
            return cutter.cut(text, HMM=False)

    return Tokenizer(
        dict(ids), do_lower_case=lowercase, word_maxlen=word_maxlen, pre_tokenize=pre_tokenize
    )


def ragged(name, rows):
    flat = [i for row in rows for i in row]
    return {
        f"{name}.values": np.array(flat, np.int32),
        f"{name}.lengths": np.array([len(row) for row in rows], np.int32),
    }


def run_ids(tokenizer, texts):
    return ragged("ids", [tokenizer.encode(text)[0][1:-1] for text in texts])


def run_offsets(tokenizer, texts):
    starts, ends, ok = [], [], []
    for text in texts:
        try:
            places = tokenizer.rematch(text, tokenizer.tokenize(text))[1:-1]
        except ValueError:
            places = []
            ok.append(False)
        else:
            ok.append(True)
        starts.append([place[0] for place in places])
        ends.append([place[-1] + 1 for place in places])
    return {**ragged("starts", starts), **ragged("ends", ends), "ok": np.array(ok)}


def begins_of(words):
    return [int(not i) for tokens in words for i in range(len(tokens))]


def run_words(tokenizer, texts):
    from bert4keras.snippets import lowercase_and_normalize

    begins, words = [], []
    word_piece = tokenizer._word_piece_tokenize

    def recorded(word):
        words.append(word_piece(word))
        return words[-1]

    for text in texts:
        if tokenizer._do_lower_case:
            text = lowercase_and_normalize(text)
        if tokenizer._pre_tokenize:
            parts = [
                [word] if word in tokenizer._token_dict else tokenizer._tokenize(word, False)
                for word in tokenizer._pre_tokenize(text)
            ]
        else:
            tokenizer._word_piece_tokenize, parts = recorded, words
            words.clear()
            tokenizer._tokenize(text)
        begins.append(begins_of(parts))
    tokenizer._word_piece_tokenize = word_piece
    return ragged("begins", begins)


def run_segmented(tokenizer, texts):
    from bert4keras.snippets import lowercase_and_normalize

    begins, ok = [], []
    for text in texts:
        if tokenizer._do_lower_case:
            text = lowercase_and_normalize(text)
        words = [tokenizer._tokenize(word, False) for word in tokenizer._pre_tokenize(text)]
        begins.append(begins_of(words))
        ok.append([t for tokens in words for t in tokens] == tokenizer._tokenize(text, False))
    return {**ragged("begins", begins), "ok": np.array(ok)}


def run_encode(tokenizer, calls):
    ids, segments, ok = [], [], []
    for call in calls:
        try:
            row = tokenizer.encode(**call)
        except IndexError:
            row = [], []
            ok.append(False)
        else:
            ok.append(True)
        ids.append(row[0])
        segments.append(row[1])
    return {**ragged("ids", ids), **ragged("segments", segments), "ok": np.array(ok)}


def run_decode(tokenizer, rows):
    texts = []
    for row in rows:
        try:
            texts.append(tokenizer.decode(row))
        except (IndexError, KeyError):  # only "##" so far, or an id without a token
            texts.append(None)
    return {"texts": texts}


def run(vocabulary, modes, requests, start):
    import jieba
    from bert4keras.tokenizers import load_vocab

    dictionary = os.path.join(os.path.dirname(jieba.__file__), "dict.txt")
    with open(dictionary, "rb") as file:
        frequencies = jieba.Tokenizer.gen_pfdict(file)
    ids = load_vocab(vocabulary)
    tokenizers = {name: make_tokenizer(ids, frequencies, **mode) for name, mode in modes.items()}
    tokens, keep = load_vocab(vocabulary, simplified=True, startswith=start)
    answers = {"simplified": {"tokens": list(tokens), "keep": keep}}
    for name, (kind, mode, inputs) in requests.items():
        answers[name] = globals()["run_" + kind](tokenizers[mode], inputs)
    return answers
