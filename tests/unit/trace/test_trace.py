"""Recording and replacing: bits, identities, positions, steps, sequences, budgets."""

from __future__ import annotations

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError, TraceBudgetError, UnknownPointError
from minillama.generate import LanguageModel
from minillama.gguf.constants import GGMLType
from minillama.kernels.reference.dequantize import GET_ROWS
from minillama.kernels.registry import kernel_set
from minillama.kernels.scratch import BLOCK_BYTES
from minillama.trace import Recording, Trace, edits

IDS = [int(token) for token in np.random.default_rng(3).integers(0, 256, 40)]
EVERYTHING = ["*", "blk.*.kq", "blk.*.kq_soft_max", "blk.*.attn_norm.q8_0"]


@pytest.fixture(scope="module")
def whole(model: LanguageModel) -> Trace:
    """Everything, over a prompt."""
    return model.trace(IDS, EVERYTHING)


class TestBits:
    def test_a_traced_pass_has_the_bits_of_an_untraced_one(self, model: LanguageModel, whole: Trace) -> None:
        np.testing.assert_array_equal(whole.logits, model.logits(IDS))
        np.testing.assert_array_equal(whole["result_output"], whole.logits)

    @pytest.mark.parametrize("record", [["blk.*.l_out"], ["*"], EVERYTHING])
    def test_generation_does_not_change(self, model: LanguageModel, record: list[str]) -> None:
        trace = Trace(model, record)
        got = model.generate(IDS[:5], max_tokens=6, trace=trace, logprobs=1)
        assert got.logprobs == model.generate(IDS[:5], max_tokens=6, logprobs=1).logprobs

    def test_every_driver_records_the_same(self, tiny_path, model: LanguageModel, whole: Trace) -> None:
        eager = LanguageModel(gguf.open(tiny_path), driver="eager").trace(IDS, EVERYTHING)
        cache, planned = model.new_cache(), Trace(model, EVERYTHING[:3])
        for token in IDS:  # one token a pass: recorded by a plan that keeps the values
            model.forward([token], cache, logits="all", watch=planned)
        stepper = model.step(IDS)
        assert set(planned) == {name for name in whole if not name.endswith("q8_0")}
        for name in whole:
            np.testing.assert_array_equal(eager[name], whole[name], err_msg=name)
            if name in planned:
                np.testing.assert_array_equal(planned[name], whole[name], err_msg=name)
        while not stepper.done:
            name = stepper.next()
            np.testing.assert_array_equal(stepper.value, whole[name], err_msg=name)

    def test_an_edit_that_changes_nothing_changes_no_bits(self, model: LanguageModel, whole: Trace) -> None:
        for ids in (IDS, IDS[:1]):  # run eagerly, and by a plan
            edited = model.trace(ids, edits={"*": lambda value, _site: value, "blk.1.kq": lambda _value, _site: None})
            np.testing.assert_array_equal(edited.logits, whole.logits[: len(ids)])


class TestIdentities:
    def test_the_residual_stream_adds_up(self, whole: Trace) -> None:
        stream = whole["token_embd"]
        for i in range(3):
            middle = whole[f"blk.{i}.attn_out"] + stream
            np.testing.assert_array_equal(whole[f"blk.{i}.ffn_inp"], middle)
            stream = whole[f"blk.{i}.ffn_out"] + middle
            np.testing.assert_array_equal(whole[f"blk.{i}.l_out"], stream)

    def test_weights_times_values_are_kqv(self, model: LanguageModel, whole: Trace) -> None:
        config = model.config
        values = whole["blk.1.v"].reshape(len(IDS), config.n_head_kv, -1)
        for head in range(config.n_head):
            pattern, kqv = whole["blk.1.kq_soft_max"][:, head], whole["blk.1.kqv"].reshape(len(IDS), config.n_head, -1)
            terms = (pattern[:, :, None] * values[None, :, head // 2]).astype(np.float64)  # float products,
            total = np.zeros(terms[:, 0].shape)
            for position in range(len(IDS)):  # summed in double, in order
                total += terms[:, position]
            np.testing.assert_array_equal(kqv[:, head], total.astype(np.float32))

    def test_patterns_are_causal_probabilities(self, whole: Trace) -> None:
        pattern, scores = whole["blk.2.kq_soft_max"], whole["blk.2.kq"]
        ahead = np.triu(np.ones((len(IDS), len(IDS)), bool), 1)
        assert not pattern.transpose(0, 2, 1)[ahead].any()
        assert np.isneginf(scores.transpose(0, 2, 1)[ahead]).all()
        np.testing.assert_allclose(pattern.sum(axis=2), 1, rtol=1e-6)  # rounded to float32 one by one

    def test_norm_and_head_reproduce_the_logits(self, model: LanguageModel, whole: Trace) -> None:
        np.testing.assert_array_equal(whole["result_norm"] @ model.weights["output.weight"].T, whole.logits)

    def test_packed_rows_are_what_the_quantizer_makes(self, whole: Trace) -> None:
        packed, rows = whole["blk.1.attn_norm.q8_0"], whole["blk.1.attn_norm"]
        want = np.empty_like(packed)
        kernel_set("reference").quantize[GGMLType.Q8_0](rows, want, 0, len(rows))
        np.testing.assert_array_equal(packed, want)
        decoded, scratch = np.empty_like(rows), np.zeros(BLOCK_BYTES, np.uint8)
        GET_ROWS[GGMLType.Q8_0](packed, np.arange(len(rows)), decoded, scratch, 0, len(rows))
        assert 0 < np.abs(decoded - rows).max() < np.abs(rows).max() / 127


class TestRecording:
    def test_values_are_copies(self, model: LanguageModel, whole: Trace) -> None:
        trace, cache = Trace(model, "blk.0.l_out"), model.new_cache()
        model.forward(IDS[:1], cache, watch=trace)
        first = trace.step(0)["blk.0.l_out"].copy()
        model.forward(IDS[1:2], cache, watch=trace)
        np.testing.assert_array_equal(trace.step(0)["blk.0.l_out"], first)
        np.testing.assert_array_equal(trace["blk.0.l_out"], whole["blk.0.l_out"][:2])

    @pytest.mark.parametrize(
        ("positions", "want"),
        [(-1, [39]), ([3, -2], [3, 38]), (slice(10, 14), [10, 11, 12, 13]), (slice(-2, None), [38, 39]), (0, [0])],
    )
    def test_positions(self, model: LanguageModel, whole: Trace, positions: object, want: list[int]) -> None:
        trace = model.trace(IDS, ["blk.1.q", "result_output", "blk.1.kq"], positions=positions)
        assert trace.positions("blk.1.q").tolist() == want
        np.testing.assert_array_equal(trace["blk.1.q"], whole["blk.1.q"][want])
        np.testing.assert_array_equal(trace["result_output"], whole.logits[want])
        np.testing.assert_array_equal(trace["blk.1.kq"], whole["blk.1.kq"][want, :, : want[-1] + 1])

    def test_chunks_of_a_long_prompt_are_one_step(self, model: LanguageModel) -> None:
        ids = (IDS * 14)[:530]  # passes of 512 and 18 tokens
        trace = model.trace(ids, "blk.2.l_out", positions=[5, -1, -20])
        assert trace.n_steps == 1
        assert trace.positions("blk.2.l_out").tolist() == [5, 510, 529]
        want = model.trace(ids, "blk.2.l_out")["blk.2.l_out"]
        np.testing.assert_array_equal(trace["blk.2.l_out"], want[[5, 510, 529]])

    def test_steps_of_a_generation(self, model: LanguageModel) -> None:
        trace = Trace(model, ["blk.1.l_out", "blk.1.kq_soft_max"])
        tokens = model.generate(IDS[:6], max_tokens=4, ignore_eos=True, trace=trace).tokens
        assert trace.n_steps == 4
        assert trace["blk.1.l_out"].shape == (9, 256)
        assert trace.step(0)["blk.1.l_out"].shape == (6, 256)
        assert trace.step(-1).positions("blk.1.l_out").tolist() == [8]
        assert trace.tokens == [*IDS[:6], *tokens[:-1]]
        want = model.trace(trace.tokens, ["blk.1.l_out", "blk.1.kq_soft_max"])
        for name in want:  # patterns of earlier steps are filled up with zeros
            np.testing.assert_array_equal(trace[name], want[name])

    def test_a_stream_is_recorded_as_far_as_it_is_read(self, model: LanguageModel) -> None:
        trace, seen = Trace(model, "blk.1.l_out"), []
        for piece in model.stream(IDS[:6], max_tokens=4, ignore_eos=True, trace=trace):
            seen.append(piece.token)
            if len(seen) == 2:
                break
        assert trace.n_steps == 2  # the prompt, and the first token
        assert trace.tokens == [*IDS[:6], seen[0]]
        np.testing.assert_array_equal(trace["blk.1.l_out"], model.trace(trace.tokens, "blk.1.l_out")["blk.1.l_out"])

    def test_sequences_of_a_batch(self, model: LanguageModel) -> None:
        texts = [IDS[:7], IDS[7:9], IDS[9:30]]
        trace = Trace(model, ["blk.1.kq", "blk.1.l_out", "result_output"], positions=[1, -1])
        model.forward_batch(texts, [model.new_cache() for _ in texts], logits="last", watch=trace)
        with pytest.raises(InvalidInputError, match="3 sequences were recorded"):
            trace["blk.1.l_out"]
        for i, ids in enumerate(texts):
            alone = model.trace(ids, ["blk.1.kq", "blk.1.l_out", "result_output"])
            got, chosen = trace.sequence(i), sorted({1, len(ids) - 1})
            np.testing.assert_array_equal(got["blk.1.l_out"], alone["blk.1.l_out"][chosen])
            np.testing.assert_array_equal(got["blk.1.kq"], alone["blk.1.kq"][chosen])
            # Of the last layer only what leads to logits is computed.
            np.testing.assert_array_equal(got["result_output"], alone["result_output"][-1:])
        with pytest.raises(InvalidInputError, match=r"no sequence 5, recorded are \[0, 1, 2\]"):
            trace.sequence(5)

    def test_the_budget_is_kept_before_anything_is_computed(self, model: LanguageModel) -> None:
        size = 40 * 256 * 4
        assert model.trace(IDS, "blk.0.l_out", max_bytes=size).nbytes == size
        cache = model.new_cache()
        with pytest.raises(TraceBudgetError, match=r"1 points of 40 tokens take 0.0 MB"):
            model.trace(IDS, "blk.0.l_out", max_bytes=size - 1, cache=cache)
        assert len(cache) == 0
        with pytest.raises(TraceBudgetError):
            model.trace(IDS, "blk.0.kq", max_bytes=40 * 4 * 40 * 4 - 1)
        trace = Trace(model, "blk.0.l_out", max_bytes=8 * 256 * 4)
        with pytest.raises(TraceBudgetError):
            model.generate(IDS[:6], max_tokens=9, ignore_eos=True, trace=trace)
        assert trace.nbytes == 8 * 256 * 4  # the prompt and two tokens: full, not over

    @pytest.mark.parametrize("ending", ["npz", "safetensors"])
    def test_save_and_load(self, model: LanguageModel, tmp_path, ending: str) -> None:
        trace = Trace(model, EVERYTHING, positions=slice(0, 9))
        model.generate(IDS[:6], max_tokens=4, ignore_eos=True, trace=trace)
        loaded = Recording.load(trace.save(tmp_path / f"trace.{ending}"))
        assert set(loaded) == set(trace)
        assert loaded.tokens == trace.tokens
        for name in trace:
            np.testing.assert_array_equal(loaded[name], trace[name])
            assert loaded.positions(name).tolist() == trace.positions(name).tolist()
        np.testing.assert_array_equal(loaded.step(2)["l_out-1"], trace.step(2)["l_out-1"])

    def test_save_and_load_several_sequences(self, model: LanguageModel, tmp_path) -> None:
        trace = Trace(model, "blk.0.l_out")
        model.forward_batch([IDS[:3], IDS[:5]], [model.new_cache(), model.new_cache()], watch=trace)
        loaded = Recording.load(trace.save(tmp_path / "trace.npz"))
        np.testing.assert_array_equal(loaded.sequence(1)["blk.0.l_out"], trace.sequence(1)["blk.0.l_out"])
        assert loaded.sequence(1).tokens == IDS[:5]

    def test_files_that_are_none(self, tmp_path) -> None:
        for name in ("a.npz", "a.safetensors"):
            (tmp_path / name).write_bytes(b"\x05\0\0\0\0\0\0\0hello")
            with pytest.raises(InvalidInputError, match="not a saved recording"):
                Recording.load(tmp_path / name)
        with pytest.raises(InvalidInputError, match=r"wanted a name that ends in .npz or .safetensors"):
            Recording.load(tmp_path / "a.txt")

    def test_what_was_not_recorded(self, whole: Trace, model: LanguageModel) -> None:
        trace = model.trace(IDS, "blk.*.l_out")
        with pytest.raises(UnknownPointError, match=r"'blk.1.q' was not recorded; recorded are .*l_out"):
            trace["blk.1.q"]
        with pytest.raises(UnknownPointError, match="nothing was"):
            model.trace(IDS)["blk.1.q"]
        with pytest.raises(InvalidInputError, match="no step 1: 1 were recorded"):
            whole.step(1)
        with pytest.raises(InvalidInputError, match=r"positions are 1.5"):
            model.trace(IDS, "*", positions=1.5)

    def test_stop_after(self, model: LanguageModel, whole: Trace) -> None:
        for ids in (IDS, IDS[:1]):
            cache = model.new_cache()
            trace = model.trace(ids, "*", stop_after="blk.1.attn_out", cache=cache)
            assert trace.logits is None
            assert len(cache) == 0
            np.testing.assert_array_equal(trace["blk.1.attn_out"], whole["blk.1.attn_out"][: len(ids)])
            if len(ids) > 1:
                assert list(trace)[-1] == "blk.1.attn_out"


class TestEdits:
    def test_what_follows_changes_and_what_precedes_does_not(self, model: LanguageModel, whole: Trace) -> None:
        trace = model.trace(IDS, "*", edits={"blk.1.attn_out": edits.zero(positions=7)})
        for name in ("blk.1.kqv", "blk.0.l_out"):
            np.testing.assert_array_equal(trace[name], whole[name])
        same = (trace["blk.1.l_out"] == whole["blk.1.l_out"]).all(axis=1)
        assert same.tolist() == [i != 7 for i in range(len(IDS))]
        assert not (trace.logits[7] == whole.logits[7]).any()
        np.testing.assert_array_equal(trace.logits[:7], whole.logits[:7])

    def test_an_edited_plan_equals_an_edited_eager_pass(self, model: LanguageModel) -> None:
        change = {
            "blk.*.ffn_out": edits.add(np.full(256, 0.5)),
            "blk.1.q_rope": lambda value, _site: value * 2,
            "blk.2.kq": lambda value, _site: value * np.float32(0.5),
            "blk.0.kq_soft_max": lambda value, _site: value * np.float32(0.5),
        }
        record = EVERYTHING[:3]
        eager, planned = model.trace(IDS, record, edits=change), Trace(model, record, edits=change)
        cache = model.new_cache()
        logits = [model.forward([token], cache, watch=planned) for token in IDS]
        np.testing.assert_array_equal(logits, eager.logits)
        for name in eager:
            np.testing.assert_array_equal(planned[name], eager[name], err_msg=name)

    def test_a_value_of_its_own_as_an_array(self, model: LanguageModel, whole: Trace) -> None:
        trace = model.trace(IDS, edits={"blk.2.l_out": whole["blk.2.l_out"]})
        np.testing.assert_array_equal(trace.logits, whole.logits)

    def test_patching_everything_gives_the_other_run(self, model: LanguageModel, whole: Trace) -> None:
        other = IDS[::-1]
        got = model.trace(other, edits={"blk.2.l_out": edits.patch(whole)}).logits
        np.testing.assert_array_equal(got, whole.logits)
        with pytest.raises(InvalidInputError, match=r"the source has no blk.2.l_out of position 40"):
            model.trace([*IDS, 1], edits={"blk.2.l_out": edits.patch(whole)})

    def test_attention_patterns(self, model: LanguageModel, whole: Trace) -> None:
        def only_itself(pattern, _site):
            pattern[...] = 0
            pattern[np.arange(len(IDS)), :, np.arange(len(IDS))] = 1

        trace = model.trace(IDS, "blk.0.kqv", edits={"blk.0.kq_soft_max": only_itself})
        values = whole["blk.0.v"].reshape(len(IDS), 2, -1).repeat(2, axis=1)
        np.testing.assert_array_equal(trace["blk.0.kqv"], values.reshape(len(IDS), -1))

    def test_heads(self, model: LanguageModel) -> None:
        trace = model.trace(IDS, "blk.0.kqv", edits={"blk.0.kqv": edits.zero(heads=[1, 3], n_head=4)})
        assert trace["blk.0.kqv"].reshape(40, 4, -1).any(axis=(0, 2)).tolist() == [True, False, True, False]

    def test_mean_ablation(self, model: LanguageModel, whole: Trace) -> None:
        trace = model.trace(IDS, "blk.0.ffn_out", edits={"blk.0.ffn_out": edits.mean(whole, positions=[2, 3])})
        np.testing.assert_array_equal(trace["blk.0.ffn_out"][2], whole["blk.0.ffn_out"].mean(axis=0))
        np.testing.assert_array_equal(trace["blk.0.ffn_out"][4], whole["blk.0.ffn_out"][4])

    def test_steering_a_generation(self, model: LanguageModel) -> None:
        seen = []
        change = {"blk.1.l_out": lambda value, site: seen.append((site.step, site.layer, site.positions.tolist()))}
        model.generate(IDS[:3], max_tokens=3, ignore_eos=True, edits=change)
        assert seen == [(0, 1, [0, 1, 2]), (1, 1, [3]), (2, 1, [4])]
        steered = model.generate(IDS[:3], max_tokens=8, edits={"blk.2.l_out": edits.add(np.arange(256) * 1.0)})
        assert steered.tokens != model.generate(IDS[:3], max_tokens=8).tokens

    def test_an_edit_that_never_fires(self, model: LanguageModel) -> None:
        with pytest.raises(InvalidInputError, match=r"edits that never fired: blk.1.ffn_out"):
            model.trace(IDS, edits={"blk.1.ffn_out": edits.zero(positions=100)})
        with pytest.raises(InvalidInputError, match=r"edits that never fired: blk.2.q"):
            model.trace(IDS, edits={"blk.2.q": edits.zero()}, stop_after="blk.0.l_out")
        with pytest.raises(InvalidInputError, match="never fired"), Trace(model, edits={"blk.2.q": edits.zero()}):
            pass
        with pytest.raises(InvalidInputError, match="never fired"):
            model.generate(IDS[:3], max_tokens=2, edits={"blk.1.ffn_out": edits.zero(positions=100)})

    @pytest.mark.parametrize(
        ("replacement", "found"),
        [(np.zeros((40, 255), np.float32), r"float32 \(40, 255\)"), (np.zeros((40, 256)), r"float64 \(40, 256\)")],
    )
    def test_wrong_replacements(self, model: LanguageModel, replacement: np.ndarray, found: str) -> None:
        cache = model.new_cache()
        message = rf"the edit of blk.1.l_out returned {found}, wanted float32 \(40, 256\)"
        with pytest.raises(InvalidInputError, match=message):
            model.trace(IDS, edits={"blk.1.l_out": replacement}, cache=cache)
        assert len(cache) == 0

    def test_packed_rows_cannot_be_replaced(self, model: LanguageModel) -> None:
        with pytest.raises(InvalidInputError, match=r"can be recorded, not replaced; replace blk.0.attn_norm instead"):
            model.trace(IDS, edits={"blk.0.attn_norm.q8_0": lambda value, _site: value})

    def test_unknown_points(self, model: LanguageModel) -> None:
        for arguments in ({"record": "blk.0.lout"}, {"edits": {"nothing": edits.zero()}}, {"stop_after": "blk.9.q"}):
            with pytest.raises(UnknownPointError, match="no point"):
                model.trace(IDS, **arguments)


class TestForwardFrom:
    @pytest.mark.parametrize("point", ["token_embd", "blk.0.l_out", "blk.2.l_out", "result_norm", "result_output"])
    def test_the_rest_of_the_pass(self, model: LanguageModel, whole: Trace, point: str) -> None:
        cache = model.new_cache()
        model.forward(IDS[:10], cache, logits=None)
        got = model.forward_from(point, whole[point][10:], cache)
        np.testing.assert_array_equal(got, whole.logits[10:])
        assert len(cache) == 10
        empty = model.new_cache()
        model.forward_from(point, whole[point], empty)
        assert empty.blocks == ()  # nothing stays reserved

    def test_keys_that_were_not_computed_are_not_attended_to(self, model: LanguageModel, whole: Trace) -> None:
        names = ["blk.2.q_rope", "blk.2.inp_selected"]  # all that the last layer needs, but for its keys and values
        with pytest.raises(InvalidInputError, match=r"blk.2.ffn_inp needs blk.2.attn_out_selected too"):
            model.forward_from(names[0], whole[names[0]], model.new_cache(), also={names[1]: whole[names[1]]})

    def test_inside_a_layer(self, model: LanguageModel, whole: Trace) -> None:
        names = ["blk.1.ffn_norm", "blk.1.ffn_inp"]
        got = model.forward_from(names[0], whole[names[0]], model.new_cache(), also={names[1]: whole[names[1]]})
        np.testing.assert_array_equal(got, whole.logits)

    @pytest.mark.parametrize(
        ("point", "missing"),
        [("blk.1.ffn_out", "blk.1.l_out needs blk.1.ffn_inp too"), ("blk.1.q_rope", "needs blk.1.k"),
         ("blk.1.attn_norm", "blk.1.ffn_inp needs blk.0.l_out too")],
    )  # fmt: skip
    def test_what_is_missing_is_named(self, model: LanguageModel, whole: Trace, point: str, missing: str) -> None:
        with pytest.raises(InvalidInputError, match=missing):
            model.forward_from(point, whole[point], model.new_cache())

    def test_nothing_before_the_point_is_computed(self, model: LanguageModel, whole: Trace) -> None:
        trace = Trace(model, "*")
        model.forward_from("blk.1.l_out", whole["blk.1.l_out"], model.new_cache(), trace=trace)
        assert list(trace)[:2] == ["blk.1.l_out", "blk.2.attn_norm"]

    def test_wrong_shape(self, model: LanguageModel) -> None:
        with pytest.raises(
            InvalidInputError, match=r"blk.1.l_out: found float64 \(4, 256\), wanted float32 \(4, 256\)"
        ):
            model.forward_from("blk.1.l_out", np.zeros((4, 256)), model.new_cache())
