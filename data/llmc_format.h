// Header of llm.c's token files: 256 int32; the first four are the magic number, the version, the number of
// tokens, and (an extension of Cleave) the vocabulary.
#pragma once
#include <cstdint>

namespace cleave::data::llmc {

inline constexpr int64_t kHeaderBytes = 1024;
inline constexpr int32_t kMagicU16 = 20240520, kVersionU16 = 1;
inline constexpr int32_t kMagicU32 = 20240801, kVersionU32 = 7;
inline constexpr int64_t kVocabU16 = 50257, kVocabU32 = 128256;  // GPT-2 and Llama 3

}  // namespace cleave::data::llmc
