"""stub until the page's parts are merged"""


def write_page(outcome, record, folder):
    pass
