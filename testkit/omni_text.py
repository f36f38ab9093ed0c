"""A WebDataset of pictures with tones, their names as text, and a small random Qwen3-Omni."""

import json
import tarfile
from pathlib import Path
from typing import Any

from testkit import sound_text
from testkit.image_models import ImageFamily
from testkit.image_text import COLOURS, add_file, conversation, pictures, png, save_model, write_tokenizer

ARCHITECTURE = "Qwen3OmniMoeForConditionalGeneration"
"""The name in `architectures` of config.json."""
VOCABULARY = 288
"""Entries of the model's vocabulary; the tokenizer has 256 bytes and the special tokens."""
NAMED = {
    **{"image_token": "<|image_pad|>", "audio_token": "<|audio_pad|>", "video_token": "<|video_pad|>"},
    **{"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
    **{"audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"},
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a Qwen3-Omni whose text has four layers of four experts, with two towers and what speaks."""
    import transformers

    tokenizer = write_tokenizer(folder, SPECIAL, template=TEMPLATE, named=NAMED)
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(word) for name, word in NAMED.items()}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_interleaved": True}
    small = {
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 512},
    }
    config = transformers.Qwen3OmniMoeConfig(
        thinker_config={
            "audio_config": {
                **{
                    "num_mel_bins": sound_text.BINS,
                    "d_model": 32,
                    "encoder_layers": 2,
                    "n_window_infer": 200,
                },
                **{"encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 64},
                # Else tones would change logits by less than roundings do.
                **{"downsample_hidden_size": 16, "initializer_range": 0.3},
            },
            "vision_config": {
                **{"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2},
                **{"out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
            },
            "text_config": {
                **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 32},
                **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY},
                **{"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
                **{"norm_topk_prob": True, "max_position_embeddings": 2048},
                "rope_parameters": {**rope, "mrope_section": [6, 5, 5]},
            },
            **{name: ids[name] for name in ("image_token_id", "audio_token_id", "video_token_id")},
            **{"vision_start_token_id": ids["vision_bos_token_id"]},
            **{"vision_end_token_id": ids["vision_eos_token_id"]},
            **{"audio_start_token_id": ids["audio_bos_token_id"]},
            **{"audio_end_token_id": ids["audio_eos_token_id"]},
        },
        talker_config={
            "code_predictor_config": {**small, "num_code_groups": 4},
            "text_config": {
                **{**small, "moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1},
                "shared_expert_intermediate_size": 16,
                "rope_parameters": {**rope, "mrope_section": [3, 3, 2]},
            },
            **{"num_code_groups": 4, "spatial_merge_size": 2, "thinker_hidden_size": 64},
            **{"accept_hidden_layer": 1, "speaker_id": {"a": 1}},
        },
        code2wav_config={
            **{"codebook_size": 32, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2},
            **{"intermediate_size": 32, "num_hidden_layers": 1, "num_quantizers": 4, "decoder_dim": 64},
            **{"upsample_rates": [2, 2], "upsampling_ratios": [2]},
        },
    )
    processor = transformers.Qwen3OmniMoeProcessor(
        transformers.Qwen2VLImageProcessor(patch_size=16),
        transformers.Qwen3VLVideoProcessor(),
        transformers.WhisperFeatureExtractor(
            feature_size=sound_text.BINS, chunk_length=sound_text.CHUNK_SECONDS
        ),
        tokenizer,
        chat_template=TEMPLATE,
    )
    kind = transformers.Qwen3OmniMoeForConditionalGeneration
    return save_model(kind, config, processor, folder, dtype)


def answer(number: int) -> str:
    """Colour and tone of a sample."""
    colours, tones = list(COLOURS), list(sound_text.TONES)
    return f"{colours[number % len(colours)]} {tones[number % len(tones)]}"


def write_shards(folder: Path, shards: int, samples: int) -> None:
    """Write `shards` tar files of `samples` pictures with a tone each."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [picture for _, _, picture in pictures(shards * samples)]
    heard = [tone for _, _, tone in sound_text.tones(shards * samples)]
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as tar:
            for number in range(shard * samples, (shard + 1) * samples):
                record = conversation(number, f"<image><audio>what is in {number}?", answer(number))
                add_file(tar, f"{number:06}.png", png(drawn[number]))
                add_file(tar, f"{number:06}.wav", sound_text.wav(heard[number]))
                add_file(tar, f"{number:06}.json", json.dumps(record).encode())


FAMILIES = {"Qwen3-Omni": ImageFamily("Qwen3-Omni", ARCHITECTURE, write_model, "<|im_end|>\n")}
"""By name."""
