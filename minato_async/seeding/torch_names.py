"""Which of torch's operators draw random numbers, and how each is dealt with.

Names are those of ``torch.ops.aten``; the same stand under ``torch``, as methods of `Tensor` or
under ``torch.nn.functional``. A test compares these tables with what the installed torch tags as
`nondeterministic_seeded`, so a new operator is noticed.
"""

#: Make a tensor from nothing; take a generator by keyword only.
FACTORIES = ("rand", "randn", "randint", "randperm")
#: Take a generator by keyword only.
KEYWORD = (
    "bernoulli",
    "bernoulli_",
    "cauchy",
    "cauchy_",
    "exponential",
    "exponential_",
    "geometric",
    "geometric_",
    "log_normal",
    "log_normal_",
    "multinomial",
    "normal",
    "normal_",
    "normal_functional",
    "random",
    "random_",
    "uniform",
    "uniform_",
)
#: Take it as the last positional argument too: how many stand before it.
POSITIONAL = {
    "_fused_dropout": 2,
    "_sample_dirichlet": 1,
    "_standard_gamma": 1,
    "binomial": 2,
    "poisson": 1,
    "rrelu": 4,
    "rrelu_": 4,
    "rrelu_with_noise": 5,
    "rrelu_with_noise_": 5,
    "rrelu_with_noise_functional": 5,
}
#: Take one in recent versions of torch only: made from operators that always did.
LIKE = ("rand_like", "randn_like", "randint_like")
#: Take none: made from operators that do.
WITHOUT_GENERATOR = (
    "alpha_dropout",
    "alpha_dropout_",
    "dropout",
    "dropout_",
    "feature_alpha_dropout",
    "feature_alpha_dropout_",
    "feature_dropout",
    "feature_dropout_",
    "native_dropout",
    "scaled_dot_product_attention",
)
#: Recurrent layers: dropout between layers is drawn inside, from the global generator.
RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")
#: Parts of operators, which draw from the global generator where their dropout argument is
#: not zero. Nobody calls them directly, and most of them run on accelerators only.
INTERNAL = (
    "_cudnn_attention_backward",
    "_cudnn_attention_forward",
    "_cudnn_init_dropout_state",
    "_cudnn_rnn",
    "_efficient_attention_forward",
    "_flash_attention_forward",
    "_flash_attention_forward_no_dropout_inplace",
    "_lstm_mps",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_triton_scaled_dot_attention",
    "miopen_rnn",
)
#: Tagged as random by torch, but they draw nothing, or have their state as an argument.
DRAW_NOTHING = (
    "aten::_fill_mem_eff_dropout_mask_",
    "aten::_fused_sdp_choice",
    "aten::_nested_tensor_softmax_with_shape",
    "rngprims::philox_rand",
)
