// Unknown keys. The rules, in this order:
//
// 1. A common wrong name of a key, or of an unsupported feature of the section, is an error that
//    names the intended key or the action (meant_keys.h). Values that disable the feature, and old
//    names that DeepSpeed no longer reads, are warnings.
// 2. At the top level, an object with a configuration inside, and a DeepSpeed name with a file, are
//    errors.
// 3. A dotted name that is the path of a key is an error that shows the nested form.
// 4. A typo of a key of this section, and the name of a supported key of another section, are errors
//    with that key. An object is a typo only of a section, and only if one of its members belongs
//    there.
// 5. Inside a section, every other name is an error.
// 6. At the top level, a name that suggests another training (an adapter, quantization, experts,
//    ...) and enables it is an error, because it is unsupported. All other names belong to other
//    programs: a warning.
#pragma once
#include <string>

#include "config_schema/reading.h"

namespace cleave::config {

struct UnknownKey {
  bool warning;
  std::string message;
};

// Returns why an optimizer or schedule of this name is unsupported; `key` is the key with the name.
std::string refusal_of_type(const Key& key, const std::string& name);

UnknownKey judge_unknown(const Reading& reading, const std::string& section, const JsonMember& member);

}  // namespace cleave::config
