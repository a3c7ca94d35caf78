#include "error_handler.h"

#include <dlfcn.h>
#include <mujoco/mujoco.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

// Only newer headers define it.
struct mjLogMessage_;

namespace envfleet::mujoco {

namespace {

thread_local ErrorFrame* current_frame = nullptr;

void copy_text(char* to, std::size_t size, const char* text) { std::snprintf(to, size, "%s", text); }

[[noreturn]] void leave(const char* text) {
  ErrorFrame& frame = *current_frame;
  copy_text(frame.message, sizeof(frame.message), text);
  longjmp(frame.jump_target, 1);
}

// Prints each kind of warning once: thousands of envs may diverge at once. MuJoCo's own handler would also write a file.
void note_warning(const char* text) {
  if (current_frame->is_quiet) return;
  static std::mutex& mutex = *new std::mutex;
  static std::set<std::string>& seen = *new std::set<std::string>;
  const std::string kind(text, std::strcspn(text, "0123456789"));
  const std::lock_guard lock(mutex);
  if (seen.size() < 100 && seen.insert(kind).second) {
    std::fprintf(stderr, "MuJoCo warns: %s (further ones of this kind are not shown)\n", text);
  }
}

void on_error(const char* text) { leave(text); }

// Newer versions have one handler for all levels.
template <class Message>
concept KnowsLevels = requires(const Message& message) {
  message.level;
  message.subject;
};

template <class Message>
void on_message(const Message* message) {
  if constexpr (KnowsLevels<Message>) {
    constexpr int kWarning = 2, kError = 3;
    if (message->level == kError) leave(message->subject);
    if (message->level == kWarning) note_warning(message->subject);
  }
}

// The functions that MuJoCo's own bindings use; the version determines which of them exist.
struct Handlers {
  using TextHandler = void (*)(const char*);
  using MessageHandler = void (*)(const mjLogMessage_*);
  MessageHandler (*set_messages)(MessageHandler) = nullptr;
  TextHandler (*get_error)() = nullptr;
  void (*set_error)(TextHandler) = nullptr;
  TextHandler (*get_warning)() = nullptr;
  void (*set_warning)(TextHandler) = nullptr;
};

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

Handlers find_handlers() {
  Handlers found;
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&mj_version), &info) == 0) return found;
  void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return found;
  if constexpr (KnowsLevels<mjLogMessage_>) look_up(library, "_mjPRIVATE_setTlsLogHandler", found.set_messages);
  look_up(library, "_mjPRIVATE__get_tls_error_fn", found.get_error);
  look_up(library, "_mjPRIVATE__set_tls_error_fn", found.set_error);
  look_up(library, "_mjPRIVATE__get_tls_warning_fn", found.get_warning);
  look_up(library, "_mjPRIVATE__set_tls_warning_fn", found.set_warning);
  dlclose(library);
  return found;
}

const Handlers& handlers() {
  static const Handlers found = find_handlers();
  return found;
}

}  // namespace

void install_handlers(ErrorFrame& frame) {
  const Handlers& own = handlers();
  frame.previous_error = frame.previous_warning = nullptr;
  if (own.set_messages != nullptr) {
    frame.previous_error = reinterpret_cast<void*>(own.set_messages(&on_message<mjLogMessage_>));
  } else if (own.get_error != nullptr && own.set_error != nullptr) {
    frame.previous_error = reinterpret_cast<void*>(own.get_error());
    own.set_error(&on_error);
    if (own.get_warning != nullptr && own.set_warning != nullptr) {
      frame.previous_warning = reinterpret_cast<void*>(own.get_warning());
      own.set_warning(&note_warning);
    }
  } else {
    throw std::runtime_error(std::string("MuJoCo ") + mj_versionString() +
                             " has no error handler for a thread; its errors would end the process");
  }
  frame.outer = current_frame;
  current_frame = &frame;
}

void restore_handlers(ErrorFrame& frame) {
  const Handlers& own = handlers();
  current_frame = frame.outer;
  if (own.set_messages != nullptr) {
    own.set_messages(reinterpret_cast<Handlers::MessageHandler>(frame.previous_error));
    return;
  }
  own.set_error(reinterpret_cast<Handlers::TextHandler>(frame.previous_error));
  if (own.set_warning != nullptr) own.set_warning(reinterpret_cast<Handlers::TextHandler>(frame.previous_warning));
}

}  // namespace envfleet::mujoco
