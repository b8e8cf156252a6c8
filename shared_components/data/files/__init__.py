"""Read files of data: images, volumes, videos, tables, class ids; and the interface of dataset readers."""
