// What becomes of a key that no section has. One rule, in this order:
//
// 1. A name that people give to a key here, or to something that the key's section cannot have, is an error
//    that says which key is meant or what to do (meant_keys.h); one that asks for nothing, and old names that
//    DeepSpeed no longer reads, are warnings.
// 2. At the top, an object with a configuration inside, and a name of DeepSpeed's with a file, are errors.
// 3. A name with dots that is the path of a key is an error that shows how the sections are written.
// 4. A slip of a key of this section, and the name of a built key of another one, are errors with that key.
//    An object is a slip only of a section, and only where one of its members belongs there.
// 5. Inside a section every other name is an error.
// 6. At the top, one that speaks of another training (an adapter, quantization, experts, ...) and asks for
//    something is an error: that is not built. All else belongs to another program: a warning.
#pragma once
#include <string>

#include "config_schema/reading.h"

namespace cleave::config {

struct UnknownKey {
  bool warning;
  std::string message;
};

// Why an optimizer or a schedule of this name is refused, where `key` is the one that names it.
std::string refusal_of_type(const Key& key, const std::string& name);

UnknownKey judge_unknown(const Reading& reading, const std::string& section, const JsonMember& member);

}  // namespace cleave::config
