// Gloo's headers include this file, but its Debian and Ubuntu packages do not contain it. It
// declares the types as far as these headers need them; Gloo's library has the functions.
#pragma once
#include <memory>

namespace gloo {

template <class T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <class T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> ptr_;
};

template <class T>
class ShareableNonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
