/* history.c: the recorded history of memory, with the stacks of Python. */

#include "core.h"

/* The UTF-8 text of an attribute of a code object; the object keeps it. */
static const char *text_of_code(PyObject *code, const char *attribute)
{
    PyObject *object = PyObject_GetAttrString(code, attribute);
    const char *text = object ? PyUnicode_AsUTF8AndSize(object, NULL) : NULL;
    Py_XDECREF(object);
    if (!text)
        PyErr_Clear(); /* it is no UTF-8 */
    return text;
}

/* This thread's stack, innermost frame first. The frames run until the call of tcuda returns, so
 * that their texts stay valid after the GIL is released. */
size_t python_frames(void *unused, tcuda_frame *frames, size_t capacity)
{
    struct python python;
    size_t depth = 0;
    (void)unused;
    if (!enter_python(&python))
        return 0;
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame && frame != Py_None) {
        if (depth < capacity) {
            PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
            const char *name = text_of_code(code, "co_name");
            frames[depth].name = name ? name : "?";
            frames[depth].filename = text_of_code(code, "co_filename");
            frames[depth].line = PyFrame_GetLineNumber((PyFrameObject *)frame);
            Py_DECREF(code);
        }
        depth++;
        PyObject *outer = PyObject_GetAttrString(frame, "f_back");
        Py_DECREF(frame);
        frame = outer;
    }
    Py_XDECREF(frame);
    leave_python(&python);
    return depth;
}

PyObject *py_memory_record_history(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    tcuda_history_options options = TCUDA_INIT(tcuda_history_options);
    int32_t mode, with_frames;
    tcuda_status status;
    if (!has_arguments("memory_record_history", nargs, 6) || !to_int32(args[0], &mode) ||
        !to_size(args[1], &options.max_entries) || !to_int32(args[2], &options.frames_for) ||
        !to_uint32(args[3], &options.flags) || !to_text(args[4], &options.skip_actions) ||
        !to_int32(args[5], &with_frames))
        return NULL;
    options.frames = with_frames ? python_frames : NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tcuda_memory_record_history(mode, &options);
    Py_END_ALLOW_THREADS
    return status == TCUDA_STATUS_OK ? Py_NewRef(Py_None) : raise_status(self, status);
}
