"""The zoo: architectures by family, with the input sizes at which they are exported.

Importing this module needs nothing but the standard library; the builders run in the exporter's
Python. Every model has random weights with a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One architecture. `shapes` has one shape an input; `kinds` says what is drawn for each:
    "normal" numbers, "ids" below `vocab`, or "ones"."""

    name: str
    family: str
    source: str
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...] = ("normal",)
    options: dict[str, Any] = field(default_factory=dict)
    vocab: int = 0

    @property
    def key(self) -> str:
        return f"{self.source}/{self.name}"


# family, image size, models; NAME@SIZE has a size of its own
TORCHVISION = """
alexnet       96  alexnet
vgg           64  vgg11 vgg16_bn
resnet        64  resnet18 resnet34 resnet50 resnext50_32x4d wide_resnet50_2
densenet      64  densenet121 densenet169
squeezenet    96  squeezenet1_0 squeezenet1_1
inception     96  googlenet inception_v3
mobilenet     64  mobilenet_v2 mobilenet_v3_small mobilenet_v3_large
mnasnet       64  mnasnet0_5 mnasnet1_3
shufflenet    64  shufflenet_v2_x0_5 shufflenet_v2_x1_5
efficientnet  64  efficientnet_b0 efficientnet_b2 efficientnet_v2_s
regnet        64  regnet_x_400mf regnet_y_800mf
convnext      64  convnext_tiny
vit           64  vit_b_16
swin          64  swin_t swin_v2_t
maxvit        224 maxvit_t
deeplab       96  deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large fcn_resnet50
video         32  r3d_18 mc3_18 r2plus1d_18
raft          128 raft_small
"""

TIMM = """
resnet        64  resnet18d resnet26t resnet50c seresnet50 ecaresnet26t resnetrs50 resnetaa50
resnet        64  resnetblur50 seresnext26d_32x4d
resnetv2      64  resnetv2_50 resnetv2_18d
sknet         64  skresnet18 skresnext50_32x4d
resnest       64  resnest14d resnest26d
res2net       64  res2net50_26w_4s res2next50
cspnet        64  cspresnet50 cspdarknet53 darknet53 darknetaa53 sedarknet21
dla           64  dla34 dla46_c dla60_res2net
dpn           64  dpn48b dpn68
densenet      64  densenetblur121d
hrnet         64  hrnet_w18_small hrnet_w18_small_v2
inception     96  inception_v4 inception_resnet_v2
xception      96  xception41 xception41p legacy_xception
nasnet        96  nasnetalarge
pnasnet       96  pnasnet5large
mobilenet     64  mobilenetv1_100 mobilenetv2_050 mobilenetv3_small_075 mobilenetv3_rw
mobilenetv4   64  mobilenetv4_conv_small mobilenetv4_conv_medium mobilenetv4_hybrid_medium
mnasnet       64  mnasnet_small semnasnet_100 spnasnet_100
fbnet         64  fbnetc_100 fbnetv3_b
efficientnet  64  efficientnet_b1 efficientnet_lite0 efficientnet_es tf_efficientnetv2_b0
efficientnet  64  tf_efficientnet_b0 mixnet_s tinynet_a
hardcorenas   64  hardcorenas_a
lcnet         64  lcnet_050 mobilenet_edgetpu_v2_xs
ghostnet      64  ghostnet_050 ghostnetv2_100 ghostnetv3_050
rexnet        64  rexnet_100 rexnetr_100
regnet        64  regnetx_002 regnety_004 regnetv_040 regnetz_005 regnetz_b16
repvgg        64  repvgg_a0 repvgg_d2se
repghost      64  repghostnet_050
mobileone     64  mobileone_s0
fastvit       96  fastvit_t8 fastvit_sa12
repvit        96  repvit_m0_9 repvit_m1
efficientvit  96  efficientvit_b0 efficientvit_b1 efficientvit_l1
efficientvit  224 efficientvit_m0
efficientformer 224 efficientformer_l1 efficientformerv2_s0
edgenext      96  edgenext_xx_small edgenext_small
mobilevit     128 mobilevit_xxs mobilevit_s mobilevitv2_050
convnext      64  convnext_atto convnext_femto_ols convnextv2_atto convnext_zepto_rms
convmixer     64  convmixer_768_32 convmixer_1024_20_ks9_p14@56
inceptionnext 64  inception_next_atto inception_next_tiny
mambaout      64  mambaout_femto mambaout_kobe
swiftformer   96  swiftformer_xs
starnet       64  starnet_s1 starnet_s050
shvit         128 shvit_s1
vit           64  vit_tiny_patch16_224 vit_small_patch32_224 vit_base_patch32_plus_256
vit           64  vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 flexivit_small
vit           64  vit_medium_patch16_gap_240 vit_little_patch16_reg1_gap_256
vit           64  vit_dwee_patch16_reg1_gap_256
vithybrid     64  vit_tiny_r_s16_p8_224
deit          64  deit_tiny_patch16_224 deit3_small_patch16_224 deit_tiny_distilled_patch16_224
beit          64  beit_base_patch16_224 beitv2_base_patch16_224
eva           64  eva02_tiny_patch14_224@56 vit_medium_patch16_rope_reg1_gap_256
cait          64  cait_xxs24_224
convit        224 convit_tiny
crossvit      240 crossvit_tiny_240 crossvit_9_dagger_240
coat          64  coat_lite_tiny coat_tiny@224
coatnet       64  coatnet_pico_rw_224 coatnet_nano_cc_224 coatnext_nano_rw_224
maxvit        64  maxvit_pico_rw_256 maxvit_rmlp_pico_rw_256 maxxvit_rmlp_nano_rw_256
levit         224 levit_128s levit_conv_128s
twins         64  twins_pcpvt_small twins_svt_small
pit           224 pit_ti_224 pit_ti_distilled_224
pvt           64  pvt_v2_b0 pvt_v2_b1 pvt_v2_b2_li
metaformer    64  poolformer_s12 poolformerv2_s12 convformer_s18 caformer_s18
mlp           64  mixer_s32_224 resmlp_12_224 gmlp_ti16_224 gmixer_24_224
sequencer     64  sequencer2d_s
swin          64  swin_tiny_patch4_window7_224 swin_s3_tiny_224
swin2         64  swinv2_tiny_window8_256 swinv2_cr_tiny_224
focalnet      64  focalnet_tiny_srf focalnet_tiny_lrf
davit         64  davit_tiny
gcvit         224 gcvit_xxtiny
hiera         64  hiera_tiny_224@224 hiera_small_abswin_256@256
mvit          64  mvitv2_tiny@224
nest          64  nest_tiny@224 nest_tiny_jx@224
nfnet         64  nf_resnet26 nf_regnet_b0 dm_nfnet_f0 eca_nfnet_l0
nextvit       64  nextvit_small
rdnet         64  rdnet_tiny
selecsls      64  selecsls42
tinyvit       224 tiny_vit_5m_224
tnt           224 tnt_s_patch16_224
tresnet       64  tresnet_m
visformer     224 visformer_tiny
vitamin       64  vitamin_small_224
volo          224 volo_d1_224
vovnet        64  ese_vovnet19b_slim ese_vovnet39b vovnet39a
xcit          64  xcit_nano_12_p16_224 xcit_tiny_12_p8_224
hgnet         64  hgnet_tiny hgnetv2_b0
byoanet       128 halonet26t@256 botnet26t_256@256 lambda_resnet26t@256 eca_botnext26ts_256@256
gernet        64  gernet_s
senet         64  legacy_seresnet18 legacy_senet154
vgg           64  vgg11_bn
"""

# name, family, model class, config class, config, inputs
_IDS = (("ids", "ones"), ((2, 12), (2, 12)), ("input_ids", "attention_mask"))
_ONLY = (("ids",), ((2, 12),), ("input_ids",))
_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = {**_SMALL, "intermediate_size": 128}
_GQA = {**_WIDE, "num_key_value_heads": 2}
_SEQ2SEQ = (("ids", "ids"), ((2, 12), (2, 7)), ("input_ids", "decoder_input_ids"))
_BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_PIXELS = (("normal",), ((1, 3, 64, 64),), ("pixel_values",))
_SOUND = (("normal",), ((1, 4000),), ("input_values",))
_SPEECH = {**_WIDE, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}

TRANSFORMERS: list[tuple[str, str, str, dict[str, Any], Any]] = [
    ("bert", "BertModel", "BertConfig", _WIDE, _IDS),
    ("roberta", "RobertaModel", "RobertaConfig", _WIDE, _IDS),
    ("albert", "AlbertModel", "AlbertConfig", {**_WIDE, "embedding_size": 32}, _IDS),
    ("electra", "ElectraModel", "ElectraConfig", {**_WIDE, "embedding_size": 32}, _IDS),
    ("distilbert", "DistilBertModel", "DistilBertConfig",
     {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}, _IDS),
    ("mobilebert", "MobileBertModel", "MobileBertConfig",
     {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "embedding_size": 32,
      "intra_bottleneck_size": 32, "num_attention_heads": 4}, _IDS),
    ("squeezebert", "SqueezeBertModel", "SqueezeBertConfig",
     {**_WIDE, "embedding_size": 64}, _IDS),
    ("deberta", "DebertaV2Model", "DebertaV2Config", _WIDE, _IDS),
    ("mpnet", "MPNetModel", "MPNetConfig", _WIDE, _IDS),
    ("convbert", "ConvBertModel", "ConvBertConfig", {**_WIDE, "embedding_size": 32}, _IDS),
    ("fnet", "FNetModel", "FNetConfig", _WIDE, _ONLY),
    ("funnel", "FunnelBaseModel", "FunnelConfig",
     {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128, "block_sizes": [1, 1]}, _IDS),
    ("gpt2", "GPT2Model", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4}, _ONLY),
    ("gptneo", "GPTNeoModel", "GPTNeoConfig",
     {"hidden_size": 64, "num_layers": 2, "num_heads": 4,
      "attention_types": [[["global", "local"], 1]]}, _ONLY),
    ("gptneox", "GPTNeoXModel", "GPTNeoXConfig", _WIDE, _ONLY),
    ("gptj", "GPTJModel", "GPTJConfig",
     {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, _ONLY),
    ("opt", "OPTModel", "OPTConfig", {**_SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64}, _ONLY),
    ("bloom", "BloomModel", "BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4}, _ONLY),
    ("llama", "LlamaModel", "LlamaConfig", _GQA, _ONLY),
    ("mistral", "MistralModel", "MistralConfig", _GQA, _ONLY),
    ("qwen2", "Qwen2Model", "Qwen2Config", _GQA, _ONLY),
    ("qwen3", "Qwen3Model", "Qwen3Config", {**_GQA, "head_dim": 16}, _ONLY),
    ("gemma", "GemmaModel", "GemmaConfig", {**_GQA, "head_dim": 16}, _ONLY),
    ("phi", "PhiModel", "PhiConfig", _WIDE, _ONLY),
    ("mamba", "MambaModel", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2}, _ONLY),
    ("t5encoder", "T5EncoderModel", "T5Config", _T5, _ONLY),
    ("t5", "T5Model", "T5Config", _T5, _SEQ2SEQ),
    ("bart", "BartModel", "BartConfig", _BART, _SEQ2SEQ),
    ("pegasus", "PegasusModel", "PegasusConfig", _BART, _SEQ2SEQ),
    ("marian", "MarianModel", "MarianConfig", {**_BART, "pad_token_id": 0}, _SEQ2SEQ),
    ("whisper", "WhisperModel", "WhisperConfig",
     {**_BART, "max_source_positions": 50, "num_mel_bins": 16, "pad_token_id": 0,
      "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
     (("normal", "ids"), ((1, 16, 100), (1, 5)), ("input_features", "decoder_input_ids"))),
    ("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", _SPEECH, _SOUND),
    ("hubert", "HubertModel", "HubertConfig", _SPEECH, _SOUND),
    ("vit", "ViTModel", "ViTConfig", {**_WIDE, "image_size": 64}, _PIXELS),
    ("dinov2", "Dinov2Model", "Dinov2Config", {**_SMALL, "image_size": 64}, _PIXELS),
    ("segformer", "SegformerModel", "SegformerConfig",
     {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}, _PIXELS),
    ("clipvision", "CLIPVisionModel", "CLIPVisionConfig", {**_WIDE, "image_size": 64}, _PIXELS),
    ("cliptext", "CLIPTextModel", "CLIPTextConfig", {**_WIDE, "eos_token_id": 2}, _ONLY),
    ("siglip", "SiglipVisionModel", "SiglipVisionConfig", {**_WIDE, "image_size": 64}, _PIXELS),
    ("mobilevit", "MobileViTModel", "MobileViTConfig", {"image_size": 64}, _PIXELS),
    ("resnet", "ResNetModel", "ResNetConfig",
     {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}, _PIXELS),
    ("levit", "LevitModel", "LevitConfig", {},
     (("normal",), ((1, 3, 224, 224),), ("pixel_values",))),
    ("patchtst", "PatchTSTModel", "PatchTSTConfig",
     {"num_input_channels": 3, "context_length": 32, "d_model": 32, "num_hidden_layers": 2},
     (("normal",), ((1, 32, 3),), ("past_values",))),
]  # fmt: skip

# name, inputs; those that are no numbers have a kind before their shape
TORCH = """
capsnet              1x1x28x28
spatial_transformer  1x1x28x28
crnn                 1x1x32x96
retinanet            1x3x128x128
centernet            1x3x128x128
yolo                 1x3x128x128
pspnet               1x3x96x96
hourglass            1x3x128x128
unet                 1x3x96x96
unet3d               1x1x16x32x32
dncnn                1x1x48x48
espcn                1x1x48x48
fsrcnn               1x1x48x48
edsr                 1x3x48x48
rrdb                 1x3x48x48
dcgan                1x100x1x1
cyclegan             1x3x64x64
stylegan2            1x32
diffusion_unet       1x4x16x16 1 1x8x48
dit                  1x4x16x16 1
wavenet              1x1x512
conv_tasnet          1x1x2000
hifigan              1x40x32
deepspeech2          1x1x32x100
quartznet            1x40x128
ds_cnn               1x1x49x10
conformer            1x64x64
tcn                  1x64x256
bilstm               1x32x64
dlrm                 4x13 ids:4x6
deepfm               ids:4x10
ncf                  ids:8 ids:8
din                  ids:4 ids:4x20
gcn                  50x16 50x50
gat                  100x16 ids:2x400
graphsage            100x16 ids:2x400
pointnet             1x3x256
dgcnn                1x128x3
nerf                 64x32x3
nbeats               4x48
textcnn              ids:2x40
moe                  2x16x48
dueling_dqn          1x4x84x84
"""

VOCAB = 100


def _images(source: str, text: str) -> list[Entry]:
    found = []
    for line in text.strip().splitlines():
        family, size, *names = line.split()
        for name in names:
            name, _, own = name.partition("@")
            side = int(own or size)
            shape: tuple[int, ...] = (1, 3, side, side)
            if family == "video":
                shape = (1, 3, 8, side, side)
            shapes = (shape, shape) if family == "raft" else (shape,)
            found.append(Entry(name, family, source, shapes, ("normal",) * len(shapes)))
    return found


def _texts() -> list[Entry]:
    return [
        Entry(name, f"hf-{name}", "transformers", shapes, kinds, vocab=VOCAB,
              options={"model": model, "config": config, "values": values, "names": names})
        for name, model, config, values, (kinds, shapes, names) in TRANSFORMERS
    ]  # fmt: skip


def _own() -> list[Entry]:
    found = []
    for line in TORCH.strip().splitlines():
        name, *inputs = line.split()
        pairs = [text.rpartition(":")[::2] for text in inputs]
        shapes = tuple(tuple(map(int, shape.split("x"))) for _, shape in pairs)
        kinds = tuple(kind or "normal" for kind, _ in pairs)
        found.append(Entry(name, name.split("_")[0], "torch", shapes, kinds, vocab=VOCAB))
    return found


def entries() -> list[Entry]:
    """All architectures, in the order of the tables."""
    return _images("torchvision", TORCHVISION) + _images("timm", TIMM) + _texts() + _own()
