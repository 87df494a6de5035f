"""The bugs that `tests.planted_bugs` plants: one wrong line each, of the kind that gives wrong results silently."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Bug:
    """A wrong piece of a file in place of the right one, and the test that finds it."""

    name: str
    file: str
    right: str
    wrong: str
    test: str

    def planted(self, source: str) -> str:
        """Returns the text of the file with the bug."""
        return source.replace(self.right, self.wrong)


ATTENTION = (
    Bug(
        "blocks_not_rescaled",
        "jaxformer/functional/attention/blockwise.py",
        "return O * alpha[..., None] + _mix(",
        "return O + _mix(",
        "tests/functional/attention/test_blockwise.py::test_agrees_with_reference_around_whole_blocks",
    ),
    Bug(
        "linear_attention_keeps_the_first_weight",
        "jaxformer/functional/attention/linear.py",
        "return LinearState(mixed, state.weight + keys.sum(1)), _divide",
        "return LinearState(mixed, keys.sum(1)), _divide",
        "tests/functional/attention/test_linear.py::test_causal",
    ),
    Bug(
        "variance_over_masked_keys",
        "jaxformer/functional/attention/weights.py",
        "mean = jnp.where(allowed, logits, 0.0).sum(-1) / count",
        "mean = logits.mean(-1)",
        "tests/functional/attention/test_weights.py::test_sinks_and_positions_count_as_in_all_weights",
    ),
    Bug(
        "empty_rows_attend_to_all",
        "jaxformer/functional/attention/base.py",
        "weights = jnp.where(mask, weights, 0.0)\n    total",
        "weights = jnp.where(mask.any(-1, keepdims=True), weights, 1.0)\n    total",
        "tests/functional/attention/test_base.py::test_masked_softmax_of_an_empty_row_has_zero_gradient",
    ),
)

FUNCTIONAL = (
    Bug(
        "window_of_one_more_position",
        "jaxformer/functional/cache.py",
        "(distance >= 0) & (distance < window)",
        "(distance >= 0) & (distance <= window)",
        "tests/functional/test_cache.py::test_a_window_ends_with_the_position_itself",
    ),
    Bug(
        "rotation_without_amplitude",
        "jaxformer/functional/positions/rotary.py",
        "waves[:, :, None] * frequencies.amplitude",
        "waves[:, :, None]",
        "tests/functional/positions/test_rotary.py::test_rotary_scalings",
    ),
    Bug(
        "router_weights_of_all_experts",
        "jaxformer/functional/experts.py",
        "weights = weights / weights.sum(-1, keepdims=True)",
        "weights = weights / probabilities.sum(-1, keepdims=True)",
        "tests/functional/test_experts.py::test_agrees_with_a_loop_over_tokens",
    ),
    Bug(
        "smoothing_spares_the_label",
        "jaxformer/functional/losses.py",
        "low = self.smoothing / vocab_size",
        "low = self.smoothing / (vocab_size - 1)",
        "tests/functional/test_losses.py::test_linear_value_and_gradients",
    ),
)

MASKS = (
    Bug(
        "window_of_one_key_less",
        "jaxformer/masks/kinds.py",
        "allowed &= ahead >= -self.before",
        "allowed &= ahead > -self.before",
        "tests/masks/test_kinds.py::test_meanings",
    ),
    Bug(
        "key_range_of_the_intersection",
        "jaxformer/masks/algebra.py",
        "return min(left[0], right[0]), max(left[1], right[1])",
        "return max(left[0], right[0]), min(left[1], right[1])",
        "tests/masks/test_kinds.py::test_key_range_is_tight",
    ),
    Bug(
        "torch_heads_before_examples",
        "jaxformer/masks/algebra.py",
        "array = array.reshape(-1, num_heads, *array.shape[1:])",
        "array = array.reshape(num_heads, -1, *array.shape[1:]).swapaxes(0, 1)",
        "tests/masks/test_algebra.py::test_from_torch_reads_one_mask_for_each_head",
    ),
    Bug(
        "first_example_masks_all",
        "jaxformer/masks/algebra.py",
        "else tile[examples, examples])",
        "else tile[examples, 0])",
        "tests/masks/test_algebra.py::test_at_positions_of_a_mask_with_its_own_arrays",
    ),
)

MODULES = (
    Bug(
        "directions_swapped",
        "jaxformer/modules/recurrent.py",
        'reverse=name == "backward"',
        'reverse=name == "forward"',
        "tests/modules/test_recurrent.py::test_a_bidirectional_stack_is_each_layer_forwards_and_backwards",
    ),
    Bug(
        "adapters_without_rank",
        "jaxformer/modules/lora.py",
        "self.alpha / self.rank)",
        "self.alpha)",
        "tests/modules/test_lora.py::test_merged_exactly",
    ),
    Bug(
        "loss_without_scale",
        "jaxformer/modules/head.py",
        "x, table = x * jnp.asarray(self.scale, x.dtype), self._rows()",
        "x, table = x, self._rows()",
        "tests/modules/test_head.py::test_the_loss_is_that_of_the_logits",
    ),
    Bug(
        "memory_mask_dropped",
        "jaxformer/modules/blocks.py",
        "mask=memory_mask,\n                    positions=positions,",
        "positions=positions,",
        "tests/modules/test_blocks.py::test_pre_norm_decoder_block",
    ),
    Bug(
        "cross_attention_with_the_norm_of_self_attention",
        "jaxformer/modules/blocks.py",
        '_scope("cross_attention"):\n                x = self.arrangement(x, cross_attention, self.cross_norm)',
        '_scope("cross_attention"):\n                x = self.arrangement(x, cross_attention, self.attention_norm)',
        "tests/seeds/test_blocks.py::test_b5_decoder_block_has_three_sublayers",
    ),
)

MODELS = (
    Bug(
        "mean_over_padding",
        "jaxformer/models/classifier.py",
        "jnp.maximum(valid.sum(1, keepdims=True), 1)",
        "jnp.full((len(x), 1), x.shape[1])",
        "tests/models/test_classifier.py::test_pooling_uses_the_states",
    ),
    Bug(
        "encoder_sees_padding",
        "jaxformer/models/encoder.py",
        "mask, valid, segments = tokens.mask(), tokens.valid, tokens.segments",
        "valid, segments = tokens.valid, tokens.segments",
        "tests/models/test_encoder.py::test_every_token_attends_to_every_real_one",
    ),
    Bug(
        "one_step_less_of_the_cache",
        "jaxformer/models/decoder.py",
        "jnp.where((position <= length)[..., None]",
        "jnp.where((position < length)[..., None]",
        "tests/models/test_decoder.py::test_steps_beyond_the_capacity_are_nan",
    ),
    Bug(
        "skip_path_before_the_norm",
        "jaxformer/models/residual_network.py",
        "else self.skip(y)",
        "else self.skip(x)",
        "tests/models/test_residual_network.py::test_the_network_is_its_formula",
    ),
    Bug(
        "first_state_from_the_last_region",
        "jaxformer/models/captioner.py",
        "return memory.states.mean(1)",
        "return memory.states[:, -1]",
        "tests/models/test_captioner.py::test_a_step_is_that_of_show_attend_and_tell",
    ),
    Bug(
        "draws_without_their_reward",
        "jaxformer/models/captioner.py",
        "return total + estimate - jax.lax",
        "return total + 0 * estimate - 0 * jax.lax",
        "tests/models/test_captioner.py::test_the_expected_gradient_of_hard_attention_is_the_exact_one",
    ),
)

DECODING = (
    Bug(
        "states_of_other_hypotheses",
        "jaxformer/decoding/penalties.py",
        "attended = jnp.take_along_axis(self.attended, parents[..., None], axis=1)",
        "attended = self.attended",
        "tests/decoding/test_penalties.py::test_a_coverage_state_follows_its_hypotheses",
    ),
    Bug(
        "negative_scores_rewarded",
        "jaxformer/decoding/constraints.py",
        "jnp.where(scores < 0, scores * self.value, scores / self.value)",
        "scores / self.value",
        "tests/decoding/test_constraints.py::test_repetition_penalty",
    ),
    Bug(
        "nucleus_without_its_last_token",
        "jaxformer/decoding/transforms.py",
        "above = jnp.cumsum(probs, axis=-1) - probs",
        "above = jnp.cumsum(probs, axis=-1)",
        "tests/decoding/test_transforms.py::test_top_p",
    ),
    Bug(
        "tokens_of_other_parents",
        "jaxformer/decoding/beam.py",
        "return index // best.shape[2], tokens, gained, totals",
        "return index % beam_size, tokens, gained, totals",
        "tests/decoding/test_beam.py::test_sequences_without_bos_and_eos",
    ),
)

DATA = (
    Bug(
        "labels_as_inputs",
        "jaxformer/data/batch.py",
        "valid[:, 1:], labels[:, :-1]",
        "valid[:, 1:], labels[:, 1:]",
        "tests/data/test_batch.py::test_every_array",
    ),
    Bug(
        "last_window_lost",
        "jaxformer/data/windows.py",
        "return -(-self.stream.num_labels // (self",
        "return max(1, self.stream.num_labels // (self",
        "tests/data/test_windows.py::test_every_token_is_predicted_exactly_once",
    ),
    Bug(
        "pairs_share_batches_in_all_epochs",
        "jaxformer/data/batch_plan.py",
        "random = np.random.default_rng((self.seed, epoch))",
        "random = np.random.default_rng((self.seed, 0))",
        "tests/data/test_batch_plan.py::test_epochs_differ",
    ),
    Bug(
        "flips_upside_down",
        "jaxformer/data/image_batches.py",
        "columns = np.where(draws[:, 3:4] < 0.5, columns[:, ::-1], columns)",
        "rows = np.where(draws[:, 3:4] < 0.5, rows[:, ::-1], rows)",
        "tests/data/test_image_batches.py::test_flips",
    ),
)

TRAINING = (
    Bug(
        "same_noise_in_every_step",
        "jaxformer/training/step.py",
        "jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)",
        "jax.random.wrap_key_data(state.key)",
        "tests/training/test_step.py::test_each_step_draws_its_own_noise",
    ),
    Bug(
        "gradient_of_the_sum",
        "jaxformer/training/step.py",
        "widened(g) / jnp.where(count > 0, count, 1.0)",
        "widened(g)",
        "tests/training/test_step.py::test_gradient_is_that_of_the_mean",
    ),
    Bug(
        "biases_decay",
        "jaxformer/training/optimizers.py",
        'part.endswith(("bias", "scale")) for part in name.split("/")',
        'part in ("bias", "scale") for part in name.split("/")',
        "tests/training/test_optimizers.py::test_decay_spares_biases_and_norms",
    ),
    Bug(
        "cooldown_ends_early",
        "jaxformer/training/schedules.py",
        "left = steps - jnp.asarray(step, jnp.float32)",
        "left = steps - jnp.asarray(step, jnp.float32) - 1",
        "tests/training/test_optimizers.py::test_cooldown_is_a_fraction_of_the_training",
    ),
)

TASKS = (
    Bug(
        "worst_candidate_first",
        "jaxformer/tasks/generation.py",
        "key=lambda c: -c.score",
        "key=lambda c: c.score",
        "tests/tasks/test_generation.py::test_candidates_are_ranked_by_their_expected_utilities",
    ),
    Bug(
        "results_of_other_texts",
        "jaxformer/tasks/batched.py",
        "yield index, jax.tree.map(lambda x, row=row: x[row], result)",
        "yield row, jax.tree.map(lambda x, row=row: x[row], result)",
        "tests/tasks/test_batched.py::test_texts_of_similar_length_share_a_batch_and_results_are_in_order",
    ),
    Bug(
        "words_without_a_space",
        "jaxformer/tasks/generation.py",
        'for x in (text, f" {text}")]',
        "for x in (text,)]",
        "tests/tasks/test_generation.py::test_limits_are_of_the_text_that_a_tokenizer_sees",
    ),
    Bug(
        "rows_for_padding_resized",
        "jaxformer/tasks/warm_start.py",
        "resize_positions(table[offset:], new,",
        "resize_positions(table[: len(table) - offset], new,",
        "tests/tasks/test_warm_start.py::test_a_table_of_positions_is_resized_after_its_rows_for_padding",
    ),
)

OTHERS = (
    Bug(
        "possible_links_alone",
        "jaxformer/evaluation/alignments.py",
        "links & (certain | allowed)",
        "links & allowed",
        "tests/evaluation/test_alignments.py::test_one_sentence",
    ),
    Bug(
        "heads_side_by_side",
        "jaxformer/interop/packing.py",
        "return x.reshape(*lead, three, heads, dim).swapaxes(-3, -2)",
        "return x.reshape(*lead, heads, three, dim)",
        "tests/interop/test_packing.py::test_side_by_side_holds_all_queries_first",
    ),
    Bug(
        "every_host_has_all_its_adapters",
        "jaxformer/planning/roofline.py",
        "return min(link, shared * chip.network_bandwidth)",
        "return min(link, joined * chip.network_bandwidth)",
        "tests/planning/test_roofline.py::test_neighbors_share_the_outgoing_network",
    ),
    Bug(
        "rollout_in_reverse",
        "jaxformer/inspection/attention_maps.py",
        "lambda earlier, layer: layer @ earlier",
        "lambda earlier, layer: earlier @ layer",
        "tests/inspection/test_attention_maps.py::test_rollout_is_the_product_of_layers_with_their_residual_paths",
    ),
)

CLAIMS = (
    Bug(
        "rewards_of_earlier_steps",
        "jaxformer/functional/hard_attention.py",
        "to_go = jnp.cumsum(gained[:, ::-1], 1)[:, ::-1]",
        "to_go = jnp.cumsum(gained, 1)",
        "tests/models/test_captioner.py::test_the_expected_gradient_of_hard_attention_is_the_exact_one",
    ),
    Bug(
        "additive_attention_without_its_tanh",
        "jaxformer/functional/attention/additive.py",
        "hidden = jnp.tanh(added.astype(np.promote_types(query.dtype, key.dtype)))",
        "hidden = added.astype(np.promote_types(query.dtype, key.dtype))",
        "tests/seeds/test_recurrent.py::test_r4_weights_of_the_first_step",
    ),
    Bug(
        "cross_attention_has_the_norm_of_self_attention",
        "jaxformer/modules/blocks.py",
        "x = self.arrangement(x, cross_attention, self.cross_norm)\n        with",
        "x = self.arrangement(x, cross_attention, self.attention_norm)\n        with",
        "tests/seeds/test_blocks.py::test_b5_decoder_block_has_three_sublayers",
    ),
    Bug(
        "layer_norm_over_all_tokens",
        "jaxformer/functional/normalization.py",
        "centered = features - features.mean(-1, keepdims=True)",
        "centered = features - features.mean((-2, -1), keepdims=True)",
        "tests/seeds/test_claims.py::test_l11_normalization_under_padding",
    ),
    Bug(
        "recurrent_layer_has_two_products_in_a_row",
        "jaxformer/functional/recurrent.py",
        'product = _product("bd,dgh->bgh", kept, kernel)',
        'product = _product("bd,dgh->bgh", kept, kernel)\n'
        '        product = _product("bd,dgh->bgh", kept + 0 * product[:, 0], kernel)',
        "tests/seeds/test_complexity.py::test_c1_z15_sequential_operations",
    ),
    Bug(
        "longest_common_run_of_words",
        "jaxformer/evaluation/scores.py",
        "row.append(before[i] + 1 if word == other else max(row[i], before[i + 1]))",
        "row.append(before[i] + 1 if word == other else 0)",
        "tests/evaluation/test_scores.py::test_rouge_equals_counts_by_hand",
    ),
)

OF_PARTS = ATTENTION + FUNCTIONAL + MASKS + MODULES + MODELS + DECODING + DATA + TRAINING + TASKS + OTHERS + CLAIMS
