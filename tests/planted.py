"""The bugs that `tests.planted_bugs` plants: one wrong line each, of the kind that gives wrong results silently."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Bug:
    """A wrong line, and the test that finds it; the file is below `jaxformer`, and the test below `tests`."""

    name: str
    file: str
    right: str
    wrong: str
    test: str

    def planted(self, source: str) -> str:
        """Returns the text of the file with the bug.

        Raises:
          SystemExit: the file does not have the right text exactly once.
        """
        if (count := source.count(self.right)) != 1:
            raise SystemExit(f"{self.name}: the text is {count} times in {self.file}: choose another piece of the code")
        return source.replace(self.right, self.wrong)


ATTENTION = (
    Bug(
        "blocks_not_rescaled",
        "functional/attention/blockwise.py",
        "return O * alpha[..., None] + _mix(",
        "return O + _mix(",
        "functional/attention/test_blockwise.py::test_agrees_with_reference_around_whole_blocks",
    ),
    Bug(
        "linear_attention_keeps_the_first_weight",
        "functional/attention/linear.py",
        "return LinearState(mixed, state.weight + keys.sum(1)), _divide",
        "return LinearState(mixed, keys.sum(1)), _divide",
        "functional/attention/test_linear.py::test_causal",
    ),
    Bug(
        "variance_over_masked_keys",
        "functional/attention/weights.py",
        "mean = jnp.where(allowed, logits, 0.0).sum(-1) / count",
        "mean = logits.mean(-1)",
        "functional/attention/test_weights.py::test_sinks_and_positions_count_as_in_all_weights",
    ),
    Bug(
        "empty_rows_attend_to_all",
        "functional/attention/base.py",
        "weights = jnp.where(mask, weights, 0.0)\n    total",
        "weights = jnp.where(mask.any(-1, keepdims=True), weights, 1.0)\n    total",
        "functional/attention/test_base.py::test_masked_softmax_of_an_empty_row_has_zero_gradient",
    ),
)

FUNCTIONAL = (
    Bug(
        "window_of_one_more_position",
        "functional/cache.py",
        "(distance >= 0) & (distance < window)",
        "(distance >= 0) & (distance <= window)",
        "models/test_language_model.py::test_steps_equal_the_rows_of_the_full_pass",
    ),
    Bug(
        "rotation_without_amplitude",
        "functional/positions/rotary.py",
        "waves[:, :, None] * frequencies.amplitude",
        "waves[:, :, None]",
        "functional/positions/test_rotary.py::test_rotary_scalings",
    ),
    Bug(
        "router_weights_of_all_experts",
        "functional/experts.py",
        "weights = weights / weights.sum(-1, keepdims=True)",
        "weights = weights / probabilities.sum(-1, keepdims=True)",
        "functional/test_experts.py::test_agrees_with_a_loop_over_tokens",
    ),
    Bug(
        "smoothing_spares_the_label",
        "functional/losses.py",
        "low = self.smoothing / vocab_size",
        "low = self.smoothing / (vocab_size - 1)",
        "functional/test_losses.py::test_linear_value_and_gradients",
    ),
)

MASKS = (
    Bug(
        "window_of_one_key_less",
        "masks/kinds.py",
        "allowed &= ahead >= -self.before",
        "allowed &= ahead > -self.before",
        "masks/test_kinds.py::test_meanings",
    ),
    Bug(
        "key_range_of_the_intersection",
        "masks/algebra.py",
        "return min(left[0], right[0]), max(left[1], right[1])",
        "return max(left[0], right[0]), min(left[1], right[1])",
        "masks/test_algebra.py::test_key_range_holds_every_allowed_key",
    ),
    Bug(
        "torch_heads_before_examples",
        "masks/algebra.py",
        "array = array.reshape(-1, num_heads, *array.shape[1:])",
        "array = array.reshape(num_heads, -1, *array.shape[1:]).swapaxes(0, 1)",
        "masks/test_algebra.py::test_from_torch_reads_one_mask_for_each_head",
    ),
    Bug(
        "first_example_masks_all",
        "masks/algebra.py",
        "else tile[examples, examples])",
        "else tile[examples, 0])",
        "masks/test_algebra.py::test_at_positions_of_a_mask_with_its_own_arrays",
    ),
)

BUGS = ATTENTION + FUNCTIONAL + MASKS
