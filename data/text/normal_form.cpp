#include "data/text/normal_form.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/error.h"

namespace cleave::text {
namespace {

const icu::Normalizer2& instance_of(NormalForm form, UErrorCode& error) {
  switch (form) {
    case NormalForm::nfd:
      return *icu::Normalizer2::getNFDInstance(error);
    case NormalForm::nfkc:
      return *icu::Normalizer2::getNFKCInstance(error);
    case NormalForm::nfkd:
      return *icu::Normalizer2::getNFKDInstance(error);
    default:
      return *icu::Normalizer2::getNFCInstance(error);
  }
}

// The tokenizers library normalizes with the tables of Unicode 9: newer characters are unchanged, and no
// character moves across them.
struct Normalizers {
  Normalizers() {
    UErrorCode error = U_ZERO_ERROR;
    known.applyPattern(u"[:age=9.0:]", error);
    known.freeze();
    for (const NormalForm form : {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd})
      of.push_back(std::make_unique<icu::FilteredNormalizer2>(instance_of(form, error), known));
    require(U_SUCCESS(error), Exit::internal, "ICU: normalization data are missing: {}", u_errorName(error));
  }
  icu::UnicodeSet known;
  std::vector<std::unique_ptr<icu::FilteredNormalizer2>> of;  // by form
};

const icu::Normalizer2& normalizer_of(NormalForm form) {
  static const Normalizers all;
  return *all.of[size_t(form)];
}

}  // namespace

std::string_view to_normal_form(NormalForm form, std::string_view text, std::string& scratch) {
  // ASCII has every form.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; }))
    return text;
  const icu::Normalizer2& normalizer = normalizer_of(form);
  require(text.size() <= size_t(INT32_MAX), Exit::data,
          "text: a line of {} bytes is too long to normalize (expected at most {})", text.size(), INT32_MAX);
  const icu::StringPiece piece(text.data(), int32_t(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(piece, error) && U_SUCCESS(error)) return text;
  scratch.clear();
  icu::StringByteSink<std::string> sink(&scratch);
  error = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, piece, sink, nullptr, error);
  require(U_SUCCESS(error), Exit::data, "text: {} bytes cannot be normalized: {}", text.size(),
          u_errorName(error));
  return scratch;
}

}  // namespace cleave::text
