#include "text/normal_form.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>

#include <algorithm>
#include <cstdint>

#include "core/error.h"

namespace cleave {
namespace {

const icu::Normalizer2& normalizer_of(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* found = nullptr;
  switch (form) {
    case NormalForm::nfc:
      found = icu::Normalizer2::getNFCInstance(error);
      break;
    case NormalForm::nfd:
      found = icu::Normalizer2::getNFDInstance(error);
      break;
    case NormalForm::nfkc:
      found = icu::Normalizer2::getNFKCInstance(error);
      break;
    case NormalForm::nfkd:
      found = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  require(found != nullptr, Exit::internal, "ICU has no data of normal forms: {}", u_errorName(error));
  return *found;
}

}  // namespace

std::string_view to_normal_form(NormalForm form, std::string_view text, std::string& scratch) {
  // ASCII has every form.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; }))
    return text;
  const icu::Normalizer2& normalizer = normalizer_of(form);
  require(text.size() <= size_t(INT32_MAX), Exit::data,
          "a text of {} bytes without a line end to cut it at is too long to normalize; most are {}",
          text.size(), INT32_MAX);
  const icu::StringPiece piece(text.data(), int32_t(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(piece, error) && U_SUCCESS(error)) return text;
  scratch.clear();
  icu::StringByteSink<std::string> sink(&scratch);
  error = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, piece, sink, nullptr, error);
  require(U_SUCCESS(error), Exit::data, "a text of {} bytes cannot be normalized: {}", text.size(),
          u_errorName(error));
  return scratch;
}

}  // namespace cleave
