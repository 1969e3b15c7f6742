// Included by Gloo's own headers and left out of its packages, Debian's and Ubuntu's alike. These are the
// types as far as those headers need them: what they consist of. Gloo's library has their functions.
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
