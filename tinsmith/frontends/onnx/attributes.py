"""Checks that attributes of ONNX nodes have values of the right kind, which follows from the name
of the attribute, in nearly all operators alike."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tinsmith.frontends.onnx.call import Unsupported

_SHOWN = {
    "f": "a number", "i": "a whole number", "s": "a string", "t": "a tensor", "g": "a graph",
    "F": "a list of numbers", "I": "a list of whole numbers", "S": "a list of strings",
}  # fmt: skip

_NAMES = {
    "f": """
alpha beta bias clip cubic_coeff_a decay_factor default_float epsilon extrapolation_value gamma
height_scale high lambd low mask_filter_value max mean min momentum norm_coefficient
norm_coefficient_post ratio replaced_value_float scale seed softcap spatial_scale threshold
value_float width_scale FusedGemm.activation_alpha FusedGemm.activation_beta
FusedGemm.activation_gamma Pad.value""",
    "i": """
K N accuracy_level align_corners allowzero antialias axis batch_axis batch_dims bits block_size
blocksize broadcast ceil_mode center_point_box channels_last chunk_size count_include_pad
default_int64 detect_negative detect_positive do_rotary dtype end exclude_outside exclusive fmod
group groups hidden_size ignore_index input_forget interleaved inverse is_case_sensitive is_causal
is_packed_batching is_test k keepdims kv_num_heads largest layout left_window_size
linear_before_reset local_window_size mask_index_type max_gram_length max_map max_skip_count
maxsplit min_gram_length multi_class n_supports n_targets new_axis noop_with_empty_axes num_groups
num_heads num_outputs num_scan_inputs offset_group one_class onesided opset output_datatype
output_dtype output_height output_sequence output_width past_present_share_buffer periodic
precision q_num_heads qk_matmul_output_mode replaced_value_int64 reverse right_window_size
rotary_embedding_dim rotary_interleaved sample_size sampling_ratio saturate select_last_index size
smooth_softmax softmax_precision sorted spatial start stash_type storage_order targets time_axis
training_mode transA transB transBatchA transBatchB unidirectional upper value_int zeros
Dropout.seed GroupNorm.activation SkipGroupNorm.activation TreeEnsemble.aggregate_function
TreeEnsemble.post_transform""",
    "s": """
activation aggregate_function approximate auto_pad case_change_action cast_to
coordinate_transformation_mode default_string delimiter direction equation keep_aspect_ratio_policy
kernel_type locale map_form mode nearest_mode norm padding_mode pattern pixel_format post_transform
reduction round_mode update_rule value_string y""",
    "is": "to",
    "fi": "p",
    "t": """
base_values_as_tensor class_weights_as_tensor default_tensor keys_tensor leaf_weights
membership_values nodes_hitrates_as_tensor nodes_splits nodes_values_as_tensor
target_weights_as_tensor value values_tensor TreeEnsemble.nodes_hitrates TreeEnsemble.nodes_modes
""",
    "g": "body else_branch prob_mod score_mod then_branch",
    "F": """
activation_alpha activation_beta activation_params base_values class_weights coefficients
imputed_value_floats intercepts kernel_params keys_floats nodes_hitrates nodes_values offset prob_a
prob_b rho scales support_vectors target_weights value_floats values_floats weights Scaler.scale""",
    "I": """
axes cats_int64s class_ids class_nodeids class_treeids classlabels_int64s classlabels_ints
dilations directions ends imputed_value_int64s inputdimensions int64_vocabulary
kernel_shape keys_int64s leaf_targetids ngram_counts ngram_indexes nodes_falseleafs
nodes_falsenodeids nodes_featureids nodes_missing_value_tracks_true nodes_nodeids nodes_treeids
nodes_trueleafs nodes_truenodeids output_padding output_shape paddings pads perm pool_int64s
pooled_shape qkv_hidden_sizes scan_input_axes scan_input_directions scan_output_axes
scan_output_directions shape split starts strides target_ids target_nodeids target_treeids
tree_roots value_ints values_int64s vectors_per_class""",
    "S": """
activations cats_strings classes_strings classlabels_strings keys_strings nodes_modes pool_strings
stopwords string_vocabulary value_strings values_strings xs zs""",
}

KINDS: dict[str, str] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Attribute -> its kind, a letter of _SHOWN, or two of them. "Operator.attribute" stands for an
operator in which the attribute has another kind than elsewhere."""

DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
"""The domains of operators whose attributes are checked."""

_LETTERS = {float: "f", int: "i", str: "s", bytes: "s", np.ndarray: "t"}


@lru_cache(maxsize=4096)
def kind_of(op: str, name: str) -> str | None:
    """The kind of the attribute `name` of the operator `op`, as in KINDS ("i", "F", "fi"); None if
    unknown."""
    return KINDS.get(f"{op}.{name}") or KINDS.get(name)


def checked(op: str, name: str, value: Any) -> Any:
    """The `value` of an attribute, with integers converted to floats where floats are wanted.
    Raises Unsupported if it is of another kind. Values of unknown attributes pass."""
    want, have = kind_of(op, name), _kind(value)
    if want is None or (have in want if have else want in "FIS"):
        return value
    if have == "i" and want == "f":
        return float(value)
    if have == "I" and want == "F":
        return [float(v) for v in value]
    shown = " or ".join(_SHOWN[letter] for letter in want)
    raise Unsupported(f"its attribute {name!r} must be {shown}, it is {_brief(value)}")


def _kind(value: Any) -> str:
    """The letter in `_SHOWN` of a value; of a list, the capital of its first element's, "" if it is
    empty."""
    if isinstance(value, list):
        return _kind(value[0]).upper() if value else ""
    return _LETTERS.get(type(value), "g")


def _brief(value: Any) -> str:
    """A value in an error message: its text, cut to 60 characters, or words for its kind."""
    if not isinstance(value, (float, int, str, list)):
        return _SHOWN[_kind(value)]
    text = repr(value[:8] if isinstance(value, list) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
